// Block files that are consistent in themselves, checksums included, and still not what the store
// asked for: misses, whoever wrote them.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/file.h"
#include "store/cache_store.h"
#include "store/test_entries.h"
#include "store/tiers/block_file.h"

namespace droidspeak {
namespace {

namespace fs = std::filesystem;

constexpr KvLayout kLayout{.num_layers = 2, .num_kv_heads = 2, .head_dim = 8, .dtype = DType::kF32};
constexpr size_t kInputBytes = 64 * 16 * sizeof(float);

class HostileFiles : public testing::Test {
 protected:
  HostileFiles() {
    options_.disk_folder = folder_.path() / "cache";
    options_.host_bytes = 1 << 20;
    options_.kv_layout = kLayout;
    options_.input_bytes = kInputBytes;
    options_.file_system = &files_;
  }

  static std::vector<std::byte> content(uint64_t number, EntryId id) {
    size_t bytes = id.kind == EntryKind::kKeyValue ? kLayout.layer_bytes() : kInputBytes;
    return test_bytes(number * 10 + static_cast<uint64_t>(id.kind), bytes);
  }

  static void put(CacheStore& store, uint64_t number) {
    std::vector<std::byte> values = content(number, kv(0));
    std::vector<std::byte> inputs = content(number, input(1));
    std::vector<EntryBytes> entries = {{kv(0), values}, {input(1), inputs}};
    ASSERT_TRUE(put_entries(store, {test_key(number)}, entries));
  }

  static bool has(CacheStore& store, uint64_t number, EntryId id) {
    std::optional<PinnedEntry> entry = store.fetch(test_key(number), id);
    if (entry) {
      EXPECT_TRUE(std::ranges::equal(entry->bytes(), content(number, id)));
    }
    return entry.has_value();
  }

  // The header of a right file of block 1, and where it lies.
  BlockFileHeader right_header() const {
    BlockFileHeader header;
    header.key = test_key(1);
    header.layout = kLayout;
    for (EntryId id : {kv(0), input(1)}) {
      std::vector<std::byte> bytes = content(1, id);
      header.entries.push_back({.id = id,
                                .stored_bytes = bytes.size(),
                                .bytes = bytes.size(),
                                .checksum = xxhash64(bytes)});
    }
    return header;
  }

  // Zeros after the header, with the checksums that belong to them; large files are sparse.
  void write_file(BlockFileHeader header) const {
    for (BlockFileEntry& entry : header.entries) {
      if (entry.stored_bytes > 1 << 20) continue;
      std::vector<std::byte> zeros(entry.stored_bytes);
      entry.checksum = xxhash64(zeros);
    }
    place_entries(header);
    fs::path path = options_.disk_folder / block_file_name(right_header());
    std::vector<std::byte> bytes = write_header(header);
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    fs::resize_file(path, header.file_bytes);
  }

  // Replaces block 1 by a file with another header; `id` of it must be a miss, block 2 none.
  void expect_miss(EntryId id, const std::function<void(BlockFileHeader&)>& change) {
    for (bool is_running : {false, true}) {
      fs::remove_all(options_.disk_folder);
      {
        CacheStore store(options_, clock_);
        for (uint64_t number : {1, 2}) put(store, number);
      }
      BlockFileHeader header = right_header();
      change(header);
      std::optional<CacheStore> store;
      if (is_running) store.emplace(options_, clock_);
      write_file(header);
      if (!is_running) store.emplace(options_, clock_);
      EXPECT_FALSE(has(*store, 1, id));
      EXPECT_EQ(store->counters().damaged, 1u);
      EXPECT_TRUE(has(*store, 2, kv(0)));
      EXPECT_TRUE(has(*store, 2, input(1)));
      put(*store, 1);
      store->flush();
      EXPECT_TRUE(has(*store, 1, id)) << "a right one takes its place";
      store->check_integrity();
    }
  }

  TemporaryFolder folder_;
  UnsyncedFileSystem files_;
  FakeClock clock_;
  StoreOptions options_;
};

void set_bytes(BlockFileEntry& entry, uint64_t bytes) {
  entry.bytes = bytes;
  entry.stored_bytes = bytes;
}

TEST_F(HostileFiles, OfAnotherLayout) {
  expect_miss(kv(0), [](BlockFileHeader& h) { h.layout.dtype = DType::kI8; });
  expect_miss(kv(0), [](BlockFileHeader& h) {
    std::swap(h.layout.num_kv_heads, h.layout.head_dim);  // as many bytes
  });
  expect_miss(kv(0), [](BlockFileHeader& h) { h.layout.num_layers = 3; });
  expect_miss(input(1), [](BlockFileHeader& h) { h.layout.num_layers = 3; });
}

TEST_F(HostileFiles, OfNoLayoutAndAnySize) {
  for (uint64_t bytes : {uint64_t{0}, uint64_t{1}, kLayout.layer_bytes() - 1, kLayout.layer_bytes(),
                         kLayout.layer_bytes() * 2}) {
    expect_miss(kv(0), [&](BlockFileHeader& h) {
      h.layout = {};
      set_bytes(h.entries[0], bytes);
    });
  }
}

TEST_F(HostileFiles, WithLayerInputsOfAnotherSize) {
  for (uint64_t bytes : {uint64_t{0}, kInputBytes - 1, kInputBytes + 1, uint64_t{1} << 32}) {
    expect_miss(input(1), [&](BlockFileHeader& h) { set_bytes(h.entries[1], bytes); });
  }
}

TEST_F(HostileFiles, WithLayersThatTheModelDoesNotHave) {
  expect_miss(kv(0), [](BlockFileHeader& h) { h.entries[0].id.layer = 2; });
  expect_miss(input(1), [](BlockFileHeader& h) { h.entries[1].id.layer = 1 << 30; });
}

TEST_F(HostileFiles, ThatArePipes) {
  fs::path path = options_.disk_folder / block_file_name(right_header());
  {
    CacheStore store(options_, clock_);
    for (uint64_t number : {1, 2}) put(store, number);
  }
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  ASSERT_EQ(::mkfifo((options_.disk_folder / "tmp" / "left.part").c_str(), 0600), 0);
  CacheStore store(options_, clock_);
  EXPECT_FALSE(has(store, 1, kv(0)));
  EXPECT_TRUE(has(store, 2, kv(0)));
  store.check_integrity();
}

// It would push everything else out of the budget.
TEST_F(HostileFiles, LargerThanTheWholeBudget) {
  fs::path path = options_.disk_folder / block_file_name(right_header());
  {
    CacheStore store(options_, clock_);
    for (uint64_t number : {1, 2}) put(store, number);
  }
  BlockFileHeader header = right_header();
  set_bytes(header.entries[1], options_.disk_bytes);
  write_file(header);
  CacheStore store(options_, clock_);
  EXPECT_FALSE(has(store, 1, kv(0)));
  EXPECT_TRUE(has(store, 2, kv(0)));
  EXPECT_FALSE(fs::exists(path));
  store.check_integrity();
}

}  // namespace
}  // namespace droidspeak
