// Coded blocks that the device decodes, on their way from a cache folder into K/V memory. The
// device is the CPU with a slow kernel; a GPU's gives the same bits
// (codec/device_decoder_test.cpp).
#include <atomic>
#include <cmath>
#include <fstream>
#include <future>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "base/test_wait.h"
#include "codec/device_decoder.h"
#include "codec/host_piece_kernel.h"
#include "codec/learn_tables.h"
#include "codec/piece.h"
#include "codec/test_values.h"
#include "sharing/coded_family.h"
#include "sharing/context_load.h"
#include "store/test_entries.h"
#include "store/tiers/block_file.h"

namespace droidspeak {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kNumBlocks = 7;
constexpr uint32_t kNumRaw = 3;  // stored before there are tables, which the first four teach
constexpr int32_t kNumLayers = 2;

class CodedLoading : public testing::Test {
 protected:
  CodedLoading() {
    CacheStore store(options(), clock_);
    for (uint32_t number = 0; number < kNumBlocks; ++number) {
      std::vector<std::vector<std::byte>> values;
      std::vector<EntryBytes> entries;
      for (int32_t layer = 0; layer < kNumLayers; ++layer) {
        PieceLabel label{layer, number * kBlockTokens};
        values.push_back(test_values(layout_, frequencies_, label, 1, number));
      }
      for (int32_t layer = 0; layer < kNumLayers; ++layer)
        entries.push_back({kv(layer), values[static_cast<size_t>(layer)]});
      put_entries(store, {test_key(number), {}, number}, entries);
      store.flush();
    }
  }

  StoreOptions options() const {
    StoreOptions options;
    options.host_bytes = 16 << 20;
    options.disk_folder = folder_.path() / "cache";
    options.disk_format = DiskFormat::kCoded;
    options.kv_layout = layout_;
    options.coded_model = {test_key(500), frequencies_};
    return options;
  }

  // A store whose device decodes.
  std::shared_ptr<CacheStore> open(
      std::unique_ptr<PieceKernel> kernel = std::make_unique<HostPieceKernel>()) {
    StoreOptions with_decoder = options();
    with_decoder.decoder = std::make_shared<DeviceDecoder>(*device_, std::move(kernel), layout_);
    return std::make_shared<CacheStore>(with_decoder, clock_);
  }

  // All blocks into blocks 1, 3, 5... of the memory.
  static LoadJob job_for_all() {
    LoadJob job;
    for (uint32_t number = 0; number < kNumBlocks; ++number) {
      job.stored.sender_keys.push_back(test_key(number));
      job.blocks.push_back(static_cast<int32_t>(2 * number + 1));
    }
    return job;
  }

  std::optional<LoadFailure> load(const std::shared_ptr<CacheStore>& store) {
    ContextLoad load(*device_, kv_, store, job_for_all());
    load.run();
    loaded_bytes_ = load.loaded_bytes();
    std::optional<LoadFailure> failure = load.failure();
    load.stop();
    return failure;
  }

  // What a store that decodes by itself gives.
  std::vector<std::byte> expected(uint32_t number, int32_t layer) {
    CacheStore plain(options(), clock_);
    std::optional<PinnedEntry> entry = plain.fetch(test_key(number), kv(layer));
    EXPECT_TRUE(entry && entry->coding() == nullptr);
    return {entry->bytes().begin(), entry->bytes().end()};
  }

  std::vector<std::byte> loaded(uint32_t number, int32_t layer) {
    std::vector<std::byte> bytes(layout_.layer_bytes());
    kv_.save(*device_->make_copy_lane(), layer, static_cast<int32_t>(2 * number + 1), bytes);
    return bytes;
  }

  // A file whose checksums are right and whose streams are not.
  void forge(uint32_t number, int32_t layer) {
    fs::path folder = folder_.path() / "cache" / test_key(number).hex().substr(0, 2);
    fs::path path = fs::directory_iterator(folder)->path();
    std::string file = read_file(path);
    auto bytes = std::as_writable_bytes(std::span(file));
    Result<BlockFileHeader> header = parse_header(bytes, bytes.size());
    ASSERT_TRUE(header);
    for (BlockFileEntry& entry : header->entries) {
      if (entry.id != kv(layer)) continue;
      ASSERT_EQ(entry.encoding, EntryEncoding::kCoded);
      auto piece = bytes.subspan(entry.offset, entry.stored_bytes);
      piece[sizeof(PieceHeader) + 40] ^= std::byte{16};
      entry.checksum = xxhash64(piece);
    }
    std::vector<std::byte> start = write_header(*header);
    std::ranges::copy(start, bytes.begin());
    write_file_atomically(path, file);
  }

  const KvLayout layout_{kNumLayers, 2, 32, DType::kF16};
  const std::vector<float> frequencies_ = test_frequencies(16);
  TemporaryFolder folder_;
  FakeClock clock_;
  std::unique_ptr<Device> device_ = make_cpu_device();
  KvCache kv_{*device_, layout_, 16 * layout_.block_bytes()};
  uint64_t loaded_bytes_ = 0;
};

TEST_F(CodedLoading, TheDeviceMakesTheValuesThatTheStoreWould) {
  std::shared_ptr<CacheStore> store = open();
  for (int round = 0; round < 2; ++round) {  // from the disk, then from host memory
    ASSERT_FALSE(load(store));
    EXPECT_EQ(loaded_bytes_, kNumBlocks * layout_.block_bytes());
    for (uint32_t number = 0; number < kNumBlocks; ++number)
      for (int32_t layer = 0; layer < kNumLayers; ++layer)
        EXPECT_TRUE(loaded(number, layer) == expected(number, layer)) << number << " " << layer;
  }
  EXPECT_EQ(store->counters().of(Tier::kDisk).hits, kNumBlocks * uint64_t{kNumLayers});
}

// A kernel that is at work until it is let go on.
class HeldKernel final : public PieceKernel {
 public:
  HeldKernel(std::atomic<bool>& is_at_work, std::atomic<bool>& may_go_on)
      : is_at_work_(is_at_work), may_go_on_(may_go_on) {}

  void decode(const PieceTables& tables, const PieceBatch& batch, const KvLayerView& kv) override {
    is_at_work_ = true;
    wait_until([&] { return may_go_on_.load(); });
    kernel_.decode(tables, batch, kv);
  }

 private:
  std::atomic<bool>& is_at_work_;
  std::atomic<bool>& may_go_on_;
  HostPieceKernel kernel_;
};

// Whoever has stopped a load gives its blocks to others: nothing may write into them from then on.
TEST_F(CodedLoading, StopsOnlyWhenTheDeviceHasDecoded) {
  std::atomic<bool> is_at_work = false;
  std::atomic<bool> may_go_on = false;
  std::shared_ptr<CacheStore> store = open(std::make_unique<HeldKernel>(is_at_work, may_go_on));
  ContextLoad load(*device_, kv_, store, job_for_all());
  auto running = std::async(std::launch::async, [&] { load.run(); });
  wait_until([&] { return is_at_work.load(); });
  auto stopping = std::async(std::launch::async, [&] { load.stop(); });
  EXPECT_EQ(stopping.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  may_go_on = true;
  stopping.get();
  running.get();
}

TEST_F(CodedLoading, HostMemoryHoldsPieces) {
  std::shared_ptr<CacheStore> store = open();
  ASSERT_FALSE(load(store));
  for (uint32_t number = 0; number < kNumBlocks; ++number) {
    std::optional<PinnedEntry> entry = store->fetch(test_key(number), kv(0));
    ASSERT_TRUE(entry);
    EXPECT_EQ(entry->tier(), Tier::kHost);
    EXPECT_EQ(entry->value_bytes(), layout_.layer_bytes());
    EXPECT_EQ(entry->coding() != nullptr, number >= kNumRaw) << number;
    if (entry->coding() != nullptr) {
      EXPECT_LT(entry->bytes().size(), layout_.layer_bytes() / 2);
    }
  }
}

TEST_F(CodedLoading, StreamsThatDoNotEndRightAreAMiss) {
  forge(5, 1);
  std::vector<std::byte> other_layer = expected(5, 0);
  std::shared_ptr<CacheStore> store = open();
  std::optional<LoadFailure> failure = load(store);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->reason, LoadFailure::Reason::kMissing);
  EXPECT_EQ(failure->text, "block 5 of layer 1 is coded wrongly");
  EXPECT_TRUE(loaded(5, 0) == other_layer) << "it came before";
  std::vector<EntryId> wanted = {kv(1)};
  std::vector<Digest> forged = {test_key(5)};
  std::vector<Digest> others = {test_key(4)};
  EXPECT_EQ(store->longest_prefix(forged, wanted), 0u) << "forgotten";
  EXPECT_EQ(store->longest_prefix(others, wanted), 1u);
}

TEST_F(CodedLoading, PiecesWithAWrongStartAreFoundByTheStore) {
  fs::path tables = folder_.path() / "cache" / "tables";
  fs::rename(tables, folder_.path() / "elsewhere");
  std::shared_ptr<CacheStore> store = open();
  std::optional<LoadFailure> failure = load(store);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->text, "block 3 of layer 0 is missing or damaged");
  fs::rename(folder_.path() / "elsewhere", tables);
  EXPECT_FALSE(load(store)) << "tables that come back are found";
}

std::string refusal_of_steps(const fs::path& path, const std::string& text) {
  std::ofstream(path) << text;
  try {
    (void)read_step_factors(path, {.num_layers = 2, .num_kv_heads = 1, .head_dim = 2});
    return "";
  } catch (const Failure& failure) {
    return failure.what();
  }
}

TEST(StepFactors, AreEighthsOfAnOctave) {
  TemporaryFolder folder;
  fs::path path = folder.path() / "steps.json";
  std::ofstream(path) << R"({"layers": [{"keys": [0, 8], "values": [-8, 16]},
                                        {"keys": [40, -40], "values": [4, 0]}]})";
  std::vector<float> factors =
      read_step_factors(path, {.num_layers = 2, .num_kv_heads = 1, .head_dim = 2});
  std::vector<float> expected = {1, 2, 0.5f, 4, kMostStepFactor, kLeastStepFactor, std::sqrt(2.0f),
                                 1};
  ASSERT_EQ(factors.size(), expected.size());
  for (size_t i = 0; i < factors.size(); ++i) EXPECT_FLOAT_EQ(factors[i], expected[i]);
}

TEST(StepFactors, OfAnotherModelAreRefusedByName) {
  TemporaryFolder folder;
  fs::path path = folder.path() / "steps.json";
  std::string good = R"({"keys": [0, 0], "values": [0, 0]})";
  EXPECT_EQ(refusal_of_steps(path, "{\"layers\": [" + good + "," + good + "]}"), "");
  EXPECT_NE(refusal_of_steps(path, "{\"layers\": [" + good + "]}").find("2 of them"),
            std::string::npos);
  for (const char* wrong :
       {R"({"keys": [0], "values": [0, 0]})", R"({"keys": [0, 41], "values": [0, 0]})",
        R"({"keys": [0, 0]})", R"({"keys": [0, 0], "values": [0, 0], "more": 1})"})
    EXPECT_NE(refusal_of_steps(path, "{\"layers\": [" + good + "," + wrong + "]}"), "") << wrong;
  EXPECT_NE(refusal_of_steps(path, "[]"), "");
  const std::string far = R"({"keys": [0, 0], "values": [0, -41]})";
  EXPECT_NE(refusal_of_steps(path, "{\"layers\": [" + good + "," + far + "]}")
                .find("\"layers[1].values[1]\" is -41: expected an integer from -40 to 40"),
            std::string::npos);
}

TEST(KeyRotation, LeavesOutLayersWithAnotherRopeOrNone) {
  ModelConfig config{.num_layers = 5, .rope = {.theta = 1e6, .rotary_dim = 8}};
  KeyRotation all = key_rotation_of(config, 1000);
  EXPECT_EQ(all.frequencies.size(), 4u);
  EXPECT_TRUE(all.unturned_layers.empty());
  config.unrotated_layers = {3};
  config.local_rope = RopeConfig{.theta = 1e4, .rotary_dim = 8};
  config.windows = {512, 0, 512, 0, 0};
  EXPECT_EQ(key_rotation_of(config, 1000).unturned_layers, (std::vector<int32_t>{0, 2, 3}));
  config.windows = {512, 512, 512, 0, 0};
  KeyRotation local = key_rotation_of(config, 1000);
  EXPECT_EQ(local.unturned_layers, (std::vector<int32_t>{3, 4})) << "most are local";
  EXPECT_NE(local.frequencies, all.frequencies);
  config.local_rope = config.rope;
  EXPECT_EQ(key_rotation_of(config, 1000).unturned_layers, (std::vector<int32_t>{3}));
  EXPECT_EQ(key_rotation_of(config, 1000).frequencies, all.frequencies);
}

}  // namespace
}  // namespace droidspeak
