// Random operations on a store, compared step by step with a std::map that never loses anything,
// and the same under parallel load.
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "base/file.h"
#include "store/cache_store.h"
#include "store/test_entries.h"

namespace droidspeak {
namespace {

using Bytes = std::vector<std::byte>;
constexpr uint64_t kNumKeys = 30;
constexpr int32_t kNumLayers = 4;

// kExact: everything fits, so what the model has must be found.
enum class Losses { kExact, kAllowed };

struct ModelOptions {
  StoreOptions store = {};
  Losses losses = Losses::kExact;
  uint64_t seed = 0;
};

class StoreModel {
 public:
  explicit StoreModel(const ModelOptions& options) : options_(options), random_(options.seed) {
    options_.store.file_system = &files_;
    store_ = std::make_unique<CacheStore>(options_.store, clock_);
  }

  void step() {
    clock_.advance(std::chrono::milliseconds(random_() % 3000));
    if (random_() % 50 == 0) clock_.advance(-std::chrono::hours(1));  // a clock that jumps
    switch (random_() % 20) {
      case 0:
        erase();
        break;
      case 1:
        store_->flush();
        break;
      case 2:
        restart();
        break;
      case 3:
        if (random_() % 10 == 0) clear();
        if (random_() % 4 == 0) erase_owned();
        break;
      case 4:
        pins_.clear();
        break;
      case 5:
      case 6:
        look_up();
        break;
      case 7:
      case 8:
      case 9:
      case 10:
      case 11:
      case 12:
        fetch();
        break;
      default:
        put();
        break;
    }
    store_->check_integrity();
    for (const auto& [pin, expected] : pins_)
      ASSERT_TRUE(std::ranges::equal(pin.bytes(), expected));
  }

 private:
  uint64_t random_key() { return random_() % kNumKeys; }

  EntryId random_id() {
    auto layer = static_cast<int32_t>(random_() % kNumLayers);
    return random_() % 3 == 0 ? input(layer) : kv(layer);
  }

  bool must_have() const { return options_.losses == Losses::kExact; }

  void put() {
    uint64_t key = random_key();
    std::map<EntryId, Bytes> entries;
    for (uint64_t i = 0; i <= random_() % 5; ++i) {
      EntryId id = random_id();
      entries[id] = test_entry(key, id);
    }
    std::vector<EntryBytes> views;
    for (const auto& [id, bytes] : entries) {
      views.push_back({id, bytes});
      model_[key].insert(id);
    }
    put_entries(*store_, {test_key(key), test_owner(key), static_cast<uint32_t>(key)}, views);
  }

  void fetch() {
    uint64_t key = random_key();
    EntryId id = random_id();
    bool expected = model_.contains(key) && model_[key].contains(id);
    std::optional<PinnedEntry> entry = store_->fetch(test_key(key), id);
    if (entry) {
      ASSERT_TRUE(expected) << "block " << key << " was never put, or was erased";
      ASSERT_TRUE(std::ranges::equal(entry->bytes(), test_entry(key, id)));
      if (random_() % 3 == 0) pins_.emplace_back(*entry, test_entry(key, id));
    } else {
      ASSERT_FALSE(expected && must_have()) << "block " << key << " is lost";
    }
  }

  void look_up() {
    std::vector<Digest> keys;
    uint64_t first = random_key();
    for (uint64_t key = first; key < kNumKeys; ++key) keys.push_back(test_key(key));
    std::vector<EntryId> wanted = {random_id(), random_id()};
    size_t expected = 0;
    while (expected < keys.size() && model_.contains(first + expected) &&
           model_[first + expected].contains(wanted[0]) &&
           model_[first + expected].contains(wanted[1])) {
      ++expected;
    }
    size_t found = store_->longest_prefix(keys, wanted);
    ASSERT_LE(found, expected);
    if (must_have()) {
      ASSERT_EQ(found, expected);
    }
  }

  void erase() {
    std::vector<Digest> keys;
    for (int i = 0; i < 3; ++i) {
      uint64_t key = random_key();
      keys.push_back(test_key(key));
      model_.erase(key);
    }
    store_->erase(keys);
  }

  void erase_owned() {
    uint64_t owner = random_() % 3;
    store_->erase_owned_by(test_owner(owner));
    std::erase_if(model_, [&](const auto& item) { return item.first % 3 == owner; });
  }

  void clear() {
    store_->clear();
    model_.clear();
  }

  void restart() {
    pins_.clear();
    store_.reset();
    if (options_.store.disk_folder.empty()) model_.clear();
    store_ = std::make_unique<CacheStore>(options_.store, clock_);
  }

  ModelOptions options_;
  UnsyncedFileSystem files_;
  std::mt19937_64 random_;
  FakeClock clock_;
  std::unique_ptr<CacheStore> store_;
  std::map<uint64_t, std::set<EntryId>> model_;
  std::vector<std::pair<PinnedEntry, Bytes>> pins_;
};

void run_model(const ModelOptions& options, int num_steps) {
  SCOPED_TRACE("seed " + std::to_string(options.seed));
  StoreModel model(options);
  for (int i = 0; i < num_steps; ++i) {
    model.step();
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(StoreModel, HostAndDiskWithRoomLoseNothing) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    TemporaryFolder folder;
    ModelOptions options{.seed = seed};
    options.store.disk_folder = folder.path();
    options.store.host_bytes = 64 << 20;
    run_model(options, 400);
  }
}

TEST(StoreModel, ASmallHostTierLosesNothingBesideALargeDisk) {
  for (uint64_t seed = 11; seed <= 14; ++seed) {
    TemporaryFolder folder;
    ModelOptions options{.seed = seed};
    options.store.disk_folder = folder.path();
    options.store.host_bytes = 100 << 10;
    run_model(options, 400);
  }
}

TEST(StoreModel, TightBudgetsLoseBlocksButNeverGiveWrongOnes) {
  for (const char* policy : {"lru", "s3fifo"}) {
    for (uint64_t seed = 21; seed <= 24; ++seed) {
      TemporaryFolder folder;
      ModelOptions options{.losses = Losses::kAllowed, .seed = seed};
      options.store.disk_folder = folder.path();
      options.store.host_bytes = 150 << 10;
      options.store.disk_bytes = 400 << 10;
      options.store.eviction = policy;
      run_model(options, 400);
    }
  }
}

TEST(StoreModel, HostMemoryAlone) {
  ModelOptions options{.seed = 31};
  options.store.host_bytes = 64 << 20;
  run_model(options, 3000);
  options.losses = Losses::kAllowed;
  options.store.host_bytes = 200 << 10;
  run_model(options, 3000);
}

// Every thread checks each byte it gets; the sanitizers check the rest.
TEST(StoreModel, StandsParallelLoad) {
  TemporaryFolder folder;
  SteadyClock clock;
  StoreOptions options;
  options.disk_folder = folder.path();
  options.host_bytes = 300 << 10;
  options.disk_bytes = 1 << 20;
  options.write_queue_bytes = 500 << 10;
  UnsyncedFileSystem files;
  options.file_system = &files;
  CacheStore store(options, clock);
  std::atomic<int> num_wrong = 0;
  auto work = [&](uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < 1500; ++i) {
      uint64_t key = random() % kNumKeys;
      EntryId id = random() % 2 == 0 ? kv(static_cast<int32_t>(random() % 3)) : input(0);
      Bytes right = test_entry(key, id);
      EntryBytes entry{id, right};
      std::vector<Digest> keys = {test_key(key), test_key(key + 1)};
      switch (random() % 16) {
        case 0:
          store.erase(keys);
          break;
        case 1:
          store.flush();
          break;
        case 2:
          store.check_integrity();
          break;
        case 3:
          (void)store.longest_prefix(keys, std::vector{id});
          break;
        case 4:
          (void)store.tier_of(keys, std::vector{kv(0), kv(1)});
          break;
        case 5:
          (void)store.counters();
          break;
        case 6:
          if (random() % 20 == 0) store.clear();
          if (random() % 5 == 0) store.erase_owned_by(test_owner(key));
          break;
        case 7:
        case 8:
        case 9:
        case 10:
          put_entries(store, {keys[0], test_owner(key), static_cast<uint32_t>(key)},
                      std::span(&entry, 1));
          break;
        default: {
          auto found = store.fetch(keys[0], id);
          if (found && !std::ranges::equal(found->bytes(), right)) ++num_wrong;
        }
      }
    }
  };
  std::vector<std::thread> threads;
  for (uint64_t seed = 1; seed <= 4; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  store.flush();
  store.check_integrity();
  EXPECT_EQ(num_wrong, 0);
  EXPECT_EQ(store.counters().damaged, 0u);
  EXPECT_EQ(store.counters().write_errors, 0u);
  EXPECT_GT(store.counters().of(Tier::kDisk).hits, 0u);
  EXPECT_TRUE(inspect_cache_folder(folder.path()).damaged.empty());
}

}  // namespace
}  // namespace droidspeak
