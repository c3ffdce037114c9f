// A sample of the block file's format: it must load as long as its version is this program's.
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>

#include "base/file.h"
#include "store/cache_store.h"
#include "store/test_entries.h"
#include "store/tiers/open_files.h"

namespace droidspeak {
namespace {

namespace fs = std::filesystem;

const fs::path kSample = fs::path(DROIDSPEAK_SOURCE_DIR) / "tests/data/formats/block_v2.kv";
constexpr KvLayout kLayout{.num_layers = 2, .num_kv_heads = 1, .head_dim = 8, .dtype = DType::kF16};

// K/V of layer 1 as int8 restores these exactly: every value is a multiple of its channel's scale.
std::vector<std::byte> exact_values() {
  std::vector<uint16_t> halves(kLayout.layer_bytes() / 2);
  for (size_t i = 0; i < halves.size(); ++i) {
    // 127 in the first token of each channel (scale 1), small whole numbers after it.
    size_t token = i / 8 % kBlockTokens;
    halves[i] =
        token == 0 ? 0x57f0 : static_cast<uint16_t>(0x3c00 + (i % 3) * 0x400);  // 127; 1, 2, 4
  }
  auto bytes = std::as_bytes(std::span(halves));
  return {bytes.begin(), bytes.end()};
}

// K/V of layer 0 holds an infinity and is stored raw.
std::vector<std::byte> unusual_values() {
  std::vector<std::byte> bytes = test_bytes(1, kLayout.layer_bytes());
  bytes[0] = std::byte{0x00};
  bytes[1] = std::byte{0x7c};
  return bytes;
}

void put_sample(CacheStore& store) {
  std::vector<std::byte> raw = unusual_values();
  std::vector<std::byte> values = exact_values();
  std::vector<std::byte> input_bytes = test_bytes(2, 50);
  std::vector<EntryBytes> entries = {{kv(0), raw}, {kv(1), values}, {input(1), input_bytes}};
  put_entries(store, {test_key(42), test_key(43), 7}, entries);
}

StoreOptions options_for(const fs::path& folder) {
  StoreOptions options;
  options.disk_folder = folder;
  options.disk_format = DiskFormat::kInt8;
  options.kv_layout = kLayout;
  return options;
}

fs::path only_block_file(const fs::path& folder) {
  for (const auto& item : fs::recursive_directory_iterator(folder)) {
    if (item.path().extension() == ".kv") return item.path();
  }
  return {};
}

// Set DROIDSPEAK_WRITE_SAMPLE to a path to make the sample of a new version.
TEST(FormatSample, VersionTwoStillLoads) {
  TemporaryFolder folder;
  FakeClock clock;
  {
    CacheStore store(options_for(folder.path()), clock);
    put_sample(store);
  }
  fs::path name = only_block_file(folder.path());
  if (const char* target = std::getenv("DROIDSPEAK_WRITE_SAMPLE")) fs::copy_file(name, target);
  fs::copy_file(kSample, name, fs::copy_options::overwrite_existing);

  CacheStore store(options_for(folder.path()), clock);
  EXPECT_EQ(store.counters().damaged, 0u);
  auto equals = [&](EntryId id, const std::vector<std::byte>& right) {
    std::optional<PinnedEntry> entry = store.fetch(test_key(42), id);
    return entry && std::ranges::equal(entry->bytes(), right);
  };
  EXPECT_TRUE(equals(kv(0), unusual_values()));
  EXPECT_TRUE(equals(kv(1), exact_values()));
  EXPECT_TRUE(equals(input(1), test_bytes(2, 50)));
  FileSystem files;
  Result<OpenBlockFile> opened = open_block_file(files, name, test_key(42));
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->header.position, 7u);
  EXPECT_EQ(opened->header.owner, test_key(43));
  EXPECT_EQ(opened->header.layout, kLayout);
  EXPECT_EQ(opened->header.find(kv(0))->encoding, EntryEncoding::kRaw);
  EXPECT_EQ(opened->header.find(kv(1))->encoding, EntryEncoding::kInt8);
}

// Today's program writes the very bytes of the sample: the format did not change unnoticed.
TEST(FormatSample, VersionTwoIsWhatIsWritten) {
  TemporaryFolder folder;
  FakeClock clock;
  {
    CacheStore store(options_for(folder.path()), clock);
    put_sample(store);
  }
  EXPECT_TRUE(read_file(only_block_file(folder.path())) == read_file(kSample));
}

}  // namespace
}  // namespace droidspeak
