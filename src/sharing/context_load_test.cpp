#include "sharing/context_load.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <thread>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_wait.h"
#include "device/late_device.h"
#include "sharing/transfer_threads.h"
#include "store/gated_file_system.h"
#include "store/scripted_server.h"
#include "store/test_entries.h"

namespace droidspeak {
namespace {

using namespace std::chrono_literals;

constexpr int32_t kNumBlocks = 5;
constexpr int32_t kNumLayers = 3;
constexpr int32_t kInputLayer = 1;

// Blocks on a disk that can hang, and K/V memory to load them into.
class ContextLoading : public testing::Test {
 protected:
  ContextLoading()
      : device_(make_cpu_device()), kv_(*device_, layout_, 16 * layout_.block_bytes()) {
    StoreOptions options;
    options.disk_folder = folder_.path() / "cache";
    {
      CacheStore store(options, clock_);
      for (uint64_t number = 0; number < kNumBlocks; ++number) {
        for (int32_t layer = 0; layer < kNumLayers; ++layer) put(store, number, kv(layer));
        put(store, number, input(kInputLayer));
      }
    }
    options.host_bytes = 0;
    options.file_system = &files_;
    store_ = std::make_shared<CacheStore>(options, clock_);
  }

  std::vector<std::byte> content(uint64_t number, EntryId id) const {
    return test_bytes(number * 100 + static_cast<uint64_t>(id.layer), layout_.layer_bytes());
  }

  void put(CacheStore& store, uint64_t number, EntryId id) const {
    std::vector<std::byte> bytes = content(number, id);
    EntryBytes entry{id, bytes};
    put_entries(store, {test_key(number)}, std::span(&entry, 1));
  }

  LoadJob job(std::chrono::milliseconds stall = 10s) const {
    LoadJob job;
    for (int32_t i = 0; i < kNumBlocks; ++i) {
      job.stored.sender_keys.push_back(test_key(static_cast<uint64_t>(i)));
      job.blocks.push_back(2 * i + 1);
    }
    job.stored.plan = {0, kInputLayer, 2};
    job.input_bytes = layout_.layer_bytes();
    job.limits.stall = stall;
    return job;
  }

  std::shared_ptr<ContextLoad> start(LoadJob job) {
    auto load = std::make_shared<ContextLoad>(*device_, kv_, store_, std::move(job));
    threads_->start([load] { load->run(); });
    return load;
  }

  static std::optional<LoadFailure> wait_for_end(ContextLoad& load) {
    uint64_t seen = 0;
    while (!load.is_loaded() && !load.failure()) {
      load.wait_past(seen);
      seen = load.progress();
    }
    return load.failure();
  }

  std::vector<std::byte> block_bytes(int32_t layer, int32_t block) const {
    std::vector<std::byte> bytes(layout_.layer_bytes());
    kv_.save(*device_->make_copy_lane(), layer, block, bytes);
    return bytes;
  }

  bool is_untouched() {
    for (int32_t layer = 0; layer < kNumLayers; ++layer) {
      for (int32_t block = 0; block < kv_.pool().num_blocks(); ++block) {
        std::vector<std::byte> bytes = block_bytes(layer, block);
        if (std::ranges::any_of(bytes, [](std::byte b) { return b != std::byte{0}; })) return false;
      }
    }
    return true;
  }

  const KvLayout layout_{kNumLayers, 2, 16, DType::kF32};
  TemporaryFolder folder_;
  FakeClock clock_;
  std::unique_ptr<Device> device_;
  KvCache kv_;
  GatedFileSystem files_;
  std::shared_ptr<CacheStore> store_;
  std::unique_ptr<TransferThreads> threads_ = std::make_unique<TransferThreads>();
};

TEST_F(ContextLoading, BringsInputsAndLayersToTheirPlaces) {
  auto load = start(job());
  EXPECT_FALSE(wait_for_end(*load).has_value());
  ASSERT_EQ(load->input_blocks(), kNumBlocks);
  for (int32_t i = 0; i < kNumBlocks; ++i) {
    auto number = static_cast<uint64_t>(i);
    EXPECT_TRUE(std::ranges::equal(load->input(i), content(number, input(kInputLayer))));
    for (int32_t layer : {0, 2})
      EXPECT_EQ(block_bytes(layer, 2 * i + 1), content(number, kv(layer)));
  }
  wait_until([&] { return load.use_count() == 1; });
  EXPECT_FALSE(load->layer_events(0).empty());
  EXPECT_TRUE(load->layer_events(1).empty()) << "not asked for";
  EXPECT_EQ(load->slowest_tier(), Tier::kDisk);
  EXPECT_EQ(load->loaded_bytes(), 3 * kNumBlocks * layout_.layer_bytes());
  EXPECT_EQ(load->whole_blocks(), static_cast<size_t>(kNumBlocks));
  EXPECT_GT(load->load_ms(), 0);
  EXPECT_LE(load->load_ms() * 1e-3, load->elapsed_seconds());
}

// Of the leading blocks the layers that the plan recomputes, and all that lies behind them.
TEST_F(ContextLoading, TakesItsOwnLayersFromItsOwnKeys) {
  LoadJob mixed = job();
  mixed.stored.sender_keys = {test_key(0), test_key(1)};
  for (int32_t i = 0; i < kNumBlocks; ++i) {
    auto number = static_cast<uint64_t>(50 + i);
    mixed.stored.own_keys.push_back(test_key(number));
    std::vector<EntryId> stored = {kv(2)};
    if (i >= 2) stored = {kv(0), kv(1), kv(2)};
    for (EntryId id : stored) put(*store_, number, id);
  }
  store_->flush();
  mixed.stored.plan = {0, 2, 3};
  auto load = start(mixed);
  std::optional<LoadFailure> failure = wait_for_end(*load);
  ASSERT_FALSE(failure) << failure->text;
  EXPECT_EQ(load->input_blocks(), 0);
  EXPECT_EQ(load->loaded_bytes(), 3 * kNumBlocks * layout_.layer_bytes());
  for (int32_t i = 0; i < kNumBlocks; ++i) {
    for (int32_t layer = 0; layer < kNumLayers; ++layer) {
      bool is_own = i >= 2 || layer == 2;
      auto number = static_cast<uint64_t>(is_own ? 50 + i : i);
      EXPECT_EQ(block_bytes(layer, 2 * i + 1), content(number, kv(layer))) << i << ' ' << layer;
    }
  }
}

// Two at a time: those that are whole are there whatever becomes of the rest.
TEST_F(ContextLoading, BlocksThatComeTogetherAreWholeBeforeTheNextOnes) {
  std::vector<size_t> seen;
  for (uint64_t reads = 0; reads < 14; ++reads) {
    LoadJob together = job();
    together.blocks_together = 2;
    files_.close_gate_after(reads);
    auto load = start(together);
    files_.wait_until_hanging();
    if (reads >= 6) wait_until([&] { return load->whole_blocks() >= 2; });  // three entries each
    load->stop();
    const size_t whole = load->whole_blocks();
    EXPECT_EQ(whole % 2, 0u);
    for (size_t i = 0; i < whole; ++i) {
      for (int32_t layer : {0, 2}) {
        EXPECT_EQ(block_bytes(layer, 2 * static_cast<int32_t>(i) + 1), content(i, kv(layer)))
            << reads << ' ' << i;
      }
    }
    seen.push_back(whole);
    files_.open_gate();
    wait_until([&] { return load.use_count() == 1; });  // its reads are not the next one's
  }
  EXPECT_EQ(seen.front(), 0u);
  EXPECT_GT(std::ranges::count(seen, 2u), 0);
}

// Inputs do not wait for copies of layers, and nobody who asks does.
TEST_F(ContextLoading, LayersArriveWhenTheirCopiesCan) {
  LateDevice late;
  late.become_late();
  KvCache kv_memory(late, layout_, 16 * layout_.block_bytes());
  late.close();
  auto load = std::make_shared<ContextLoad>(late, kv_memory, store_, job());
  threads_->start([load] { load->run(); });
  wait_until([&] { return load->input_blocks() == kNumBlocks; });
  std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(load->layer_events(0).empty());
  late.open();
  EXPECT_FALSE(wait_for_end(*load).has_value());
  load->stop();
  std::vector<std::byte> bytes(layout_.layer_bytes());
  for (int32_t i = 0; i < kNumBlocks; ++i) {
    for (int32_t layer : {0, 2}) {
      auto lane = late.make_copy_lane();
      kv_memory.save(*lane, layer, 2 * i + 1, bytes);
      lane->synchronize();
      EXPECT_EQ(bytes, content(static_cast<uint64_t>(i), kv(layer)));
    }
  }
}

// Pieces of a layer are copied by lanes in turn.
TEST_F(ContextLoading, EventsOfALayerStandBehindAllItsPieces) {
  LateDevice late;
  late.become_late();
  KvCache kv_memory(late, layout_, 16 * layout_.block_bytes());
  LoadJob in_pieces = job();
  in_pieces.stored.plan = ReusePlan::reuse_all();
  in_pieces.blocks_together = 1;
  std::weak_ptr<ContextLoad> running;
  std::atomic<int> num_whole = 0;
  in_pieces.on_progress = [&] {
    std::shared_ptr<ContextLoad> load = running.lock();
    for (int32_t layer : {0, 1, 2}) {
      if (load->layer_events(layer).empty()) continue;
      ++num_whole;
      for (int32_t i = 0; i < kNumBlocks; ++i) {
        std::vector<std::byte> bytes(layout_.layer_bytes());
        auto lane = late.make_copy_lane();
        kv_memory.save(*lane, layer, 2 * i + 1, bytes);
        lane->synchronize();
        EXPECT_EQ(bytes, content(static_cast<uint64_t>(i), kv(layer))) << layer << ' ' << i;
      }
    }
  };
  auto load = std::make_shared<ContextLoad>(late, kv_memory, store_, in_pieces);
  running = load;
  threads_->start([load] { load->run(); });
  EXPECT_FALSE(wait_for_end(*load).has_value());
  wait_until([&] { return load.use_count() == 1; });
  EXPECT_EQ(num_whole, 1 + 2 + 3 + 3) << "after each layer, and at the end";
}

// Who waits for E or for a layer is woken by each of them, and finds it there.
TEST_F(ContextLoading, EveryArrivalIsProgress) {
  struct Arrival {
    uint64_t progress;
    int32_t inputs;
    bool has_layer;
  };

  std::vector<Arrival> arrivals;
  ContextLoad* running = nullptr;
  LoadJob told = job();
  told.on_progress = [&] {
    arrivals.push_back(
        {running->progress(), running->input_blocks(), !running->layer_events(0).empty()});
  };
  ContextLoad load(*device_, kv_, store_, std::move(told));
  running = &load;
  load.run();
  ASSERT_EQ(arrivals.size(), kNumBlocks + 2 + 1u) << "inputs, layers, and the end";
  for (size_t i = 0; i < kNumBlocks + 2; ++i) {
    EXPECT_EQ(arrivals[i].progress, i + 1);
    EXPECT_EQ(arrivals[i].inputs, std::min<size_t>(i + 1, kNumBlocks));
    EXPECT_EQ(arrivals[i].has_layer, i >= kNumBlocks);
  }
}

TEST_F(ContextLoading, MissingEntryIsAFailure) {
  LoadJob missing = job();
  missing.stored.sender_keys[3] = test_key(77);
  auto load = start(missing);
  std::optional<LoadFailure> failure = wait_for_end(*load);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->reason, LoadFailure::Reason::kMissing);
  EXPECT_EQ(failure->text, "block 3 of layer 1 is missing or damaged");
  EXPECT_FALSE(load->is_arriving()) << "nothing comes any more";
  EXPECT_FALSE(load->is_loaded());
  EXPECT_EQ(load->whole_blocks(), 0u);
}

TEST_F(ContextLoading, EntryOfAnotherSizeIsAMissAndIsForgotten) {
  for (EntryId id : {kv(2), input(kInputLayer)}) {
    for (size_t size : {layout_.layer_bytes() - 4, layout_.layer_bytes() + 4, size_t{1}}) {
      Digest other = test_key(1000 + size + static_cast<size_t>(id.layer));
      std::vector<std::byte> bytes(size);
      std::vector<std::byte> right(layout_.layer_bytes());
      std::vector<EntryBytes> entries;
      for (EntryId entry : {kv(0), kv(2), input(kInputLayer)})
        entries.push_back({entry, entry == id ? bytes : right});
      ASSERT_TRUE(put_entries(*store_, {.key = other}, entries));
      LoadJob wrong = job();
      wrong.stored.sender_keys[3] = other;
      auto load = start(wrong);
      std::optional<LoadFailure> failure = wait_for_end(*load);
      ASSERT_TRUE(failure.has_value()) << size;
      EXPECT_EQ(failure->reason, LoadFailure::Reason::kMissing);
      EXPECT_NE(failure->text.find(std::to_string(size) + " bytes"), std::string::npos)
          << failure->text;
      EXPECT_FALSE(store_->fetch(other, kv(0))) << "so that it can be stored again";
    }
  }
}

TEST_F(ContextLoading, HangingReadIsAFailureAfterTheLimit) {
  for (uint64_t reads : {0u, 3u, 8u, 14u}) {
    files_.close_gate_after(reads);
    auto load = start(job(100ms));
    files_.wait_until_hanging();
    std::optional<LoadFailure> failure = wait_for_end(*load);
    ASSERT_TRUE(failure.has_value()) << reads;
    EXPECT_EQ(failure->reason, LoadFailure::Reason::kStalled);
    EXPECT_EQ(failure->tier, Tier::kDisk) << "which is to blame";
    EXPECT_EQ(load->failure()->text, failure->text) << "it stays";
    files_.open_gate();
    wait_until([&] { return load.use_count() == 1; });  // its reads are not the next one's
  }
}

TEST_F(ContextLoading, StopDoesNotWaitForAHangingReadAndNothingIsWrittenAfterIt) {
  files_.close_gate_after(0);
  LoadJob only_layers = job();
  only_layers.stored.plan = ReusePlan::reuse_all();
  auto load = start(only_layers);
  files_.wait_until_hanging();
  load->stop();
  load.reset();
  files_.open_gate();
  threads_.reset();  // the straggler has ended
  EXPECT_TRUE(is_untouched());
}

TEST_F(ContextLoading, SteadyButSlowLoadIsGivenUpWhenComputingIsFaster) {
  files_.set_delay(20ms);
  LoadJob slow = job(100ms);
  slow.limits.judged_after = 100ms;
  slow.limits.saved_seconds = [](int32_t) { return 0.01; };
  auto load = start(slow);
  std::optional<LoadFailure> failure = wait_for_end(*load);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->reason, LoadFailure::Reason::kStalled);
  LoadJob patient = job(100ms);
  patient.limits.judged_after = 100ms;
  patient.limits.saved_seconds = [](int32_t tokens) { return tokens; };
  EXPECT_FALSE(wait_for_end(*start(patient)).has_value());
}

// What whoever is told uses may be gone after stop().
TEST_F(ContextLoading, StopWaitsForWhoIsBeingTold) {
  std::atomic<bool> is_told = false;
  std::promise<void> end;
  LoadJob telling = job();
  telling.on_progress = [&, ended = end.get_future().share()] {
    is_told = true;
    ended.wait();
  };
  auto load = start(std::move(telling));
  wait_until([&] { return is_told.load(); });
  auto stopped = std::async(std::launch::async, [&] { load->stop(); });
  EXPECT_EQ(stopped.wait_for(50ms), std::future_status::timeout) << "somebody is still told";
  end.set_value();
  stopped.get();
  is_told = false;
  threads_.reset();
  EXPECT_FALSE(is_told) << "nobody is told any more";
}

// A server that has everything and sends nothing, on a link that is patient with it.
TEST_F(ContextLoading, StopEndsReadsThatWaitForALink) {
  std::atomic<bool> is_asked = false;
  ScriptedServer server([&](const ScriptedServer::Words& words) -> std::string {
    if (words[0] == "PING") return "+PONG\r\n";
    if (words[0] == "EXISTS") return ":" + std::to_string(words.size() - 1) + "\r\n";
    if (words[0] == "CLUSTER" || words[0] == "SET") return "-ERR\r\n";
    if (words[0] != "GET") return "$-1\r\n";
    is_asked = true;
    return "";
  });
  StoreOptions options{.host_bytes = uint64_t{1} << 20};
  options.kv_layout = layout_;
  options.input_bytes = layout_.layer_bytes();
  options.remote = {.servers = server.servers(),
                    .secret = std::vector<std::byte>(32, std::byte{7}),
                    .format = RemoteFormat::kRaw,
                    .stall = 1h};
  SteadyClock steady;
  auto store = std::make_shared<CacheStore>(options, steady);
  LoadJob waiting = job();
  std::vector<EntryId> wanted = {input(kInputLayer), kv(0), kv(2)};
  wait_until([&] {
    store->ask(waiting.stored.sender_keys, wanted);
    return store->longest_prefix(waiting.stored.sender_keys, wanted) == kNumBlocks;
  });
  auto load = std::make_shared<ContextLoad>(*device_, kv_, store, waiting);
  threads_->start([load] { load->run(); });
  wait_until([&] { return is_asked.load(); });
  load->stop();
  threads_.reset();  // run() has returned
  EXPECT_EQ(load->loaded_bytes(), 0u);
}

TEST_F(ContextLoading, TransfersRunBesideOneThatHangs) {
  files_.close_gate_after(0);
  auto hanging = start(job());
  files_.wait_until_hanging();
  bool has_run = false;
  Mutex mutex;
  Condition changed;
  threads_->start([&] {
    MutexLock lock(mutex);
    has_run = true;
    changed.notify_all();
  });
  MutexLock lock(mutex);
  while (!has_run) changed.wait(mutex);
  files_.open_gate();
}

}  // namespace
}  // namespace droidspeak
