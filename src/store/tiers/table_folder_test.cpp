#include "store/tiers/table_folder.h"

#include <cmath>
#include <fstream>
#include <random>

#include <gtest/gtest.h>

#include "base/file.h"
#include "codec/test_values.h"
#include "store/cache_store.h"
#include "store/test_entries.h"

namespace droidspeak {
namespace {

namespace fs = std::filesystem;

const KvLayout kLayout{.num_layers = 2, .num_kv_heads = 2, .head_dim = 32, .dtype = DType::kF16};

class CodedStore : public testing::Test {
 protected:
  StoreOptions options() const {
    StoreOptions options;
    options.host_bytes = 1 << 20;
    options.disk_folder = folder_.path();
    options.disk_format = DiskFormat::kCoded;
    options.kv_layout = kLayout;
    options.coded_model = {sha256(std::as_bytes(std::span("base", 4))), test_frequencies(16)};
    return options;
  }

  std::vector<std::byte> values(uint32_t position, int32_t layer) const {
    return test_values(kLayout, test_frequencies(16), {layer, position * kBlockTokens}, 1,
                       100 * position + static_cast<uint32_t>(layer));
  }

  static Digest key(uint32_t position) {
    Digest key;
    key.bytes[0] = static_cast<uint8_t>(position + 1);
    return key;
  }

  void put(CacheStore& store, uint32_t position) {
    std::vector<EntrySize> sizes = {{{EntryKind::kKeyValue, 0}, kLayout.layer_bytes()},
                                    {{EntryKind::kKeyValue, 1}, kLayout.layer_bytes()}};
    auto room = store.reserve({key(position), {}, position}, sizes);
    ASSERT_TRUE(room);
    for (int32_t layer : {0, 1}) {
      std::vector<std::byte> bytes = values(position, layer);
      std::copy(bytes.begin(), bytes.end(), room->bytes(static_cast<size_t>(layer)).begin());
    }
    store.put(std::move(*room));
    store.flush();
  }

  // How much of an entry's size is lost; nothing on a miss.
  std::optional<double> loss_of(CacheStore& store, uint32_t position, int32_t layer) {
    auto entry = store.fetch(key(position), {EntryKind::kKeyValue, layer});
    if (!entry) return std::nullopt;
    EXPECT_EQ(entry->tier(), Tier::kDisk);
    std::vector<std::byte> before = values(position, layer);
    double loss = 0;
    double size = 0;
    for (size_t i = 0; i < before.size() / 2; ++i) {
      float was = load_element(kLayout.dtype, before.data(), i);
      float is = load_element(kLayout.dtype, entry->bytes().data(), i);
      loss += (was - is) * (was - is);
      size += was * was;
    }
    return std::sqrt(loss / size);
  }

  std::vector<fs::path> table_files() const {
    std::vector<fs::path> paths;
    std::error_code error;
    for (const auto& item : fs::directory_iterator(tables_folder(folder_.path()), error))
      paths.push_back(item.path());
    return paths;
  }

  uint64_t size_of_block(uint32_t position) const {
    std::string hex = key(position).hex();
    for (const auto& item : fs::directory_iterator(folder_.path() / hex.substr(0, 2)))
      return item.file_size();
    return 0;
  }

  TemporaryFolder folder_;
  SteadyClock clock_;
};

TEST_F(CodedStore, LearnsFromTheFirstBlocksAndCodesTheOthers) {
  {
    CacheStore store(options(), clock_);
    for (uint32_t position = 0; position < 8; ++position) put(store, position);
  }
  ASSERT_EQ(table_files().size(), 1u);
  EXPECT_GT(size_of_block(0), 2 * kLayout.layer_bytes()) << "before there were tables";
  EXPECT_LT(size_of_block(7), 4096 + 2 * kLayout.layer_bytes() / 3);
  StoreOptions later = options();
  later.host_bytes = 0;
  CacheStore store(later, clock_);
  for (int32_t layer : {0, 1}) {
    EXPECT_EQ(loss_of(store, 0, layer), 0.0);
    auto loss = loss_of(store, 7, layer);
    ASSERT_TRUE(loss);
    EXPECT_GT(*loss, 0.001);
    EXPECT_LT(*loss, 0.15);
  }
  EXPECT_EQ(store.counters().damaged, 0u);
}

TEST_F(CodedStore, LaterProcessesWriteWithTheTablesThatAreThere) {
  {
    CacheStore store(options(), clock_);
    for (uint32_t position = 0; position < 4; ++position) put(store, position);
  }
  {
    CacheStore store(options(), clock_);
    put(store, 9);
  }
  EXPECT_EQ(table_files().size(), 1u);
  EXPECT_LT(size_of_block(9), 4096 + 2 * kLayout.layer_bytes() / 3);
}

TEST_F(CodedStore, AnotherModelHasTablesOfItsOwn) {
  for (uint8_t model : {uint8_t{1}, uint8_t{2}}) {
    StoreOptions other = options();
    other.coded_model.base.bytes[0] = model;
    CacheStore store(other, clock_);
    for (uint32_t position = 0; position < 4; ++position) put(store, position + 10u * model);
  }
  EXPECT_EQ(table_files().size(), 2u);
}

TEST_F(CodedStore, WithoutItsTablesABlockIsAMiss) {
  {
    CacheStore store(options(), clock_);
    for (uint32_t position = 0; position < 8; ++position) put(store, position);
  }
  for (const fs::path& path : table_files()) fs::remove(path);
  StoreOptions later = options();
  later.host_bytes = 0;
  CacheStore store(later, clock_);
  EXPECT_FALSE(loss_of(store, 7, 0));
  EXPECT_EQ(loss_of(store, 0, 0), 0.0) << "stored raw";
  EXPECT_EQ(store.counters().damaged, 1u);
}

TEST_F(CodedStore, DamagedTablesAreNotUsed) {
  {
    CacheStore store(options(), clock_);
    for (uint32_t position = 0; position < 8; ++position) put(store, position);
  }
  for (const fs::path& path : table_files()) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(1500);
    file.put('\x7f');
  }
  StoreOptions later = options();
  later.host_bytes = 0;
  CacheStore store(later, clock_);
  EXPECT_FALSE(loss_of(store, 7, 0));
  put(store, 20);
  EXPECT_GT(size_of_block(20), 2 * kLayout.layer_bytes());
}

TEST_F(CodedStore, UnknownLayoutsAndInt8KeepWhatTheyHave) {
  FileSystem files;
  for (KvLayout layout :
       {KvLayout{},
        KvLayout{.num_layers = 2, .num_kv_heads = 2, .head_dim = 32, .dtype = DType::kI8}}) {
    TableFolder tables(files, folder_.path(), {}, layout);
    EXPECT_EQ(tables.for_writing({}), nullptr);
  }
}

}  // namespace
}  // namespace droidspeak
