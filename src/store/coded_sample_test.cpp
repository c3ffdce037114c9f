// Samples of a block with coded K/V and of the tables it names: they must load as long as their
// versions are this program's.
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>

#include "base/file.h"
#include "codec/test_values.h"
#include "store/cache_store.h"
#include "store/test_entries.h"
#include "store/tiers/open_files.h"
#include "store/tiers/table_folder.h"

namespace droidspeak {
namespace {

namespace fs = std::filesystem;

const fs::path kSamples = fs::path(DROIDSPEAK_SOURCE_DIR) / "tests/data/formats";
constexpr KvLayout kLayout{
    .num_layers = 1, .num_kv_heads = 1, .head_dim = 32, .dtype = DType::kF16};

std::vector<std::byte> values_at(uint32_t position) {
  return test_values(kLayout, test_frequencies(16), {0, position * kBlockTokens}, 1, position);
}

class CodedSample : public testing::Test {
 protected:
  StoreOptions options() const {
    StoreOptions options;
    options.host_bytes = 0;
    options.disk_folder = folder_.path();
    options.disk_format = DiskFormat::kCoded;
    options.kv_layout = kLayout;
    options.coded_model = {test_key(1), test_frequencies(16)};
    return options;
  }

  void put(uint32_t position) {
    StoreOptions writing = options();
    writing.host_bytes = 1 << 20;
    CacheStore store(writing, clock_);
    std::vector<std::byte> values = values_at(position);
    std::vector<EntryBytes> entries = {{kv(0), values}};
    ASSERT_TRUE(put_entries(store, {test_key(position), test_key(43), position}, entries));
  }

  fs::path block_file(uint32_t position) const {
    for (const auto& item :
         fs::directory_iterator(folder_.path() / test_key(position).hex().substr(0, 2)))
      return item.path();
    return {};
  }

  fs::path tables_file() const {
    for (const auto& item : fs::directory_iterator(tables_folder(folder_.path())))
      return item.path();
    return {};
  }

  void use_sample_tables() {
    std::string bytes = read_file(kSamples / "codec_v2.tables");
    Digest digest = sha256(std::as_bytes(std::span(bytes)));
    fs::create_directory(tables_folder(folder_.path()));
    fs::copy_file(kSamples / "codec_v2.tables",
                  tables_folder(folder_.path()) /
                      (test_key(1).hex().substr(0, 16) + "-" + digest.hex() + ".tables"));
  }

  TemporaryFolder folder_;
  FakeClock clock_;
};

TEST_F(CodedSample, IsWhatIsWritten) {
  use_sample_tables();
  put(0);
  EXPECT_TRUE(read_file(block_file(0)) == read_file(kSamples / "block_v3.kv"));
}

// Set DROIDSPEAK_WRITE_CODED_SAMPLES to a folder to make the samples of a new version.
TEST_F(CodedSample, TablesAreWhatIsLearned) {
  StoreOptions writing = options();
  writing.host_bytes = 1 << 20;
  {
    CacheStore store(writing, clock_);
    for (uint32_t position = 1; position < 5; ++position) {
      std::vector<std::byte> values = values_at(position);
      std::vector<EntryBytes> entries = {{kv(0), values}};
      ASSERT_TRUE(put_entries(store, {test_key(position), {}, position}, entries));
      store.flush();
    }
  }
  put(0);
  if (const char* target = std::getenv("DROIDSPEAK_WRITE_CODED_SAMPLES")) {
    fs::copy_file(block_file(0), fs::path(target) / "block_v3.kv");
    fs::copy_file(tables_file(), fs::path(target) / "codec_v2.tables");
  }
  EXPECT_TRUE(read_file(tables_file()) == read_file(kSamples / "codec_v2.tables"));
}

TEST_F(CodedSample, TablesOfAnEarlierVersionAreNotRead) {
  std::string bytes = read_file(kSamples / "codec_v1.tables");
  Result<CodecTables> tables = CodecTables::parse(std::as_bytes(std::span(bytes)));
  ASSERT_FALSE(tables);
  EXPECT_NE(tables.error().message.find("version 1, this program reads 2"), std::string::npos);
}

TEST_F(CodedSample, StillLoads) {
  use_sample_tables();
  put(0);
  fs::path name = block_file(0);
  fs::copy_file(kSamples / "block_v3.kv", name, fs::copy_options::overwrite_existing);
  FileSystem files;
  Result<OpenBlockFile> opened = open_block_file(files, name, test_key(0));
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->header.find(kv(0))->encoding, EntryEncoding::kCoded);
  CacheStore store(options(), clock_);
  std::optional<PinnedEntry> entry = store.fetch(test_key(0), kv(0));
  ASSERT_TRUE(entry);
  std::vector<std::byte> right = values_at(0);
  double loss = 0;
  double size = 0;
  for (size_t i = 0; i < right.size() / 2; ++i) {
    float was = load_element(kLayout.dtype, right.data(), i);
    float is = load_element(kLayout.dtype, entry->bytes().data(), i);
    loss += (was - is) * (was - is);
    size += was * was;
  }
  EXPECT_GT(loss, 0.0);
  EXPECT_LT(std::sqrt(loss / size), 0.1);
}

}  // namespace
}  // namespace droidspeak
