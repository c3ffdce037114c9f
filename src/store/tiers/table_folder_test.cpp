#include "store/tiers/table_folder.h"

#include <array>
#include <cmath>
#include <fstream>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "codec/device_decoder.h"
#include "codec/host_piece_kernel.h"
#include "codec/learn_tables.h"
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
    put_values(store, position, position, {values(position, 0), values(position, 1)});
  }

  void put_values(CacheStore& store,
                  uint32_t number,
                  uint32_t position,
                  const std::array<std::vector<std::byte>, 2>& layers) {
    std::vector<EntrySize> sizes = {{{EntryKind::kKeyValue, 0}, kLayout.layer_bytes()},
                                    {{EntryKind::kKeyValue, 1}, kLayout.layer_bytes()}};
    auto room = store.reserve({key(number), {}, position}, sizes);
    ASSERT_TRUE(room);
    for (size_t layer : {0, 1})
      std::copy(layers[layer].begin(), layers[layer].end(), room->bytes(layer).begin());
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

  bool is_coded(uint32_t number) const {
    return size_of_block(number) < 4096 + 2 * kLayout.layer_bytes() / 2;
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

// A device that decodes is given what lies on disk, checked but as it is.
TEST_F(CodedStore, PiecesStayCodedForADeviceThatDecodes) {
  {
    CacheStore store(options(), clock_);
    for (uint32_t position = 0; position < 8; ++position) put(store, position);
  }
  auto device = make_cpu_device();
  StoreOptions kept = options();
  kept.decoder =
      std::make_shared<DeviceDecoder>(*device, std::make_unique<HostPieceKernel>(), kLayout);
  CacheStore plain(options(), clock_);
  CacheStore store(kept, clock_);
  for (int32_t layer : {0, 1}) {
    std::optional<PinnedEntry> piece = store.fetch(key(7), kv(layer));
    std::optional<PinnedEntry> right = plain.fetch(key(7), kv(layer));
    ASSERT_TRUE(piece && right);
    EXPECT_EQ(piece->tier(), Tier::kDisk);
    ASSERT_NE(piece->coding(), nullptr);
    EXPECT_EQ(right->coding(), nullptr);
    EXPECT_LT(piece->bytes().size(), kLayout.layer_bytes() / 3);
    EXPECT_EQ(piece->value_bytes(), kLayout.layer_bytes());
    EXPECT_EQ(piece->coding()->label.layer, layer);
    std::vector<std::byte> decoded(kLayout.layer_bytes());
    ASSERT_TRUE(PieceDecoder().decode(*piece->coding()->tables, kLayout, piece->coding()->label,
                                      piece->bytes(), decoded));
    EXPECT_TRUE(std::ranges::equal(decoded, right->bytes()));
    EXPECT_EQ(store.fetch(key(0), kv(layer))->coding(), nullptr) << "written before the tables";
  }
  const TierReport disk = store.counters().of(Tier::kDisk);
  EXPECT_EQ(disk.hits, 4u);
  EXPECT_EQ(disk.damaged, 0u);
  fs::remove_all(tables_folder(folder_.path()));
  CacheStore without(kept, clock_);
  EXPECT_FALSE(without.fetch(key(7), kv(0))) << "its tables are gone";
  EXPECT_EQ(without.counters().damaged, 0u);
  EXPECT_EQ(without.counters().of(Tier::kDisk).hits, 0u);
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

// Tables that are not there, or cannot be read, may be there later.
TEST_F(CodedStore, WithoutItsTablesABlockIsAMissAndStays) {
  {
    CacheStore store(options(), clock_);
    for (uint32_t position = 0; position < 8; ++position) put(store, position);
  }
  fs::path tables = table_files().at(0);
  fs::path elsewhere = folder_.path() / "tmp" / "kept";
  fs::rename(tables, elsewhere);
  StoreOptions later = options();
  later.host_bytes = 0;
  CacheStore store(later, clock_);
  EXPECT_FALSE(loss_of(store, 7, 0));
  EXPECT_EQ(loss_of(store, 0, 0), 0.0) << "stored raw";
  EXPECT_EQ(store.counters().damaged, 0u);
  store.flush();
  EXPECT_TRUE(is_coded(7)) << "the file is there";
  fs::rename(elsewhere, tables);
  EXPECT_TRUE(loss_of(store, 7, 0));
}

TEST_F(CodedStore, DamagedTablesAreNotUsedButBlocksStay) {
  {
    CacheStore store(options(), clock_);
    for (uint32_t position = 0; position < 8; ++position) put(store, position);
  }
  fs::path path = table_files().at(0);
  fs::path intact = folder_.path() / "tmp" / "kept";
  fs::copy_file(path, intact);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(1500);
    file.put('\x7f');
  }
  StoreOptions later = options();
  later.host_bytes = 0;
  CacheStore store(later, clock_);
  EXPECT_FALSE(loss_of(store, 7, 0));
  EXPECT_FALSE(loss_of(store, 7, 1));
  EXPECT_EQ(store.counters().damaged, 0u);
  fs::rename(intact, path);
  fs::last_write_time(path, fs::last_write_time(path) + std::chrono::seconds(1));
  EXPECT_TRUE(loss_of(store, 7, 0)) << "as it was before";
}

TEST_F(CodedStore, TablesUnderAnothersNameAreNotUsed) {
  {
    CacheStore store(options(), clock_);
    for (uint32_t position = 0; position < 8; ++position) put(store, position);
  }
  fs::path path = table_files().at(0);
  std::string name = path.filename().string();
  size_t digit = name.find_last_of("0123456789abcdef", name.rfind('.') - 1);
  name[digit] = name[digit] == '0' ? '1' : '0';
  fs::rename(path, path.parent_path() / name);
  StoreOptions later = options();
  later.host_bytes = 0;
  CacheStore store(later, clock_);
  EXPECT_FALSE(loss_of(store, 7, 0)) << "its own tables are not there";
  EXPECT_EQ(store.counters().damaged, 0u);
  fs::rename(path.parent_path() / name, path);
  EXPECT_TRUE(loss_of(store, 7, 0)) << "as it was before";
}

TEST_F(CodedStore, InspectionMissesTheTables) {
  {
    CacheStore store(options(), clock_);
    for (uint32_t position = 0; position < 6; ++position) put(store, position);
  }
  EXPECT_TRUE(inspect_cache_folder(folder_.path()).damaged.empty());
  fs::remove(table_files().at(0));
  CacheFolderReport report = inspect_cache_folder(folder_.path());
  EXPECT_EQ(report.files, 6u);
  ASSERT_EQ(report.damaged.size(), 3u) << "those of positions 3 to 5 are coded";
  EXPECT_NE(report.damaged[0].find("codec tables are missing"), std::string::npos);
}

TEST_F(CodedStore, Int8KvIsRefusedAtStart) {
  StoreOptions wrong = options();
  wrong.kv_layout.dtype = DType::kI8;
  try {
    CacheStore store(wrong, clock_);
    FAIL() << "it started";
  } catch (const Failure& failure) {
    EXPECT_NE(std::string(failure.what()).find("--kv-dtype is int8"), std::string::npos);
  }
}

TEST_F(CodedStore, ADamagedPieceIsRemoved) {
  {
    CacheStore store(options(), clock_);
    for (uint32_t position = 0; position < 8; ++position) put(store, position);
  }
  for (const auto& item : fs::directory_iterator(folder_.path() / key(7).hex().substr(0, 2))) {
    std::fstream file(item.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096 + 300);
    file.put('\x7f');
  }
  StoreOptions later = options();
  later.host_bytes = 0;
  CacheStore store(later, clock_);
  EXPECT_FALSE(loss_of(store, 7, 0));
  EXPECT_EQ(store.counters().damaged, 1u);
  store.flush();
  EXPECT_EQ(size_of_block(7), 0u);
}

TEST_F(CodedStore, ShortContextsAreEnoughToLearnFrom) {
  CacheStore store(options(), clock_);
  for (uint32_t number = 0; number < 4; ++number)
    put_values(store, number, 0, {values(number, 0), values(number, 1)});
  EXPECT_EQ(table_files().size(), 1u);
}

TEST_F(CodedStore, AnUnusualPromptDoesNotMakeTheTables) {
  CacheStore store(options(), clock_);
  std::vector<std::byte> equal(kLayout.layer_bytes());
  for (uint32_t number = 0; number < 8; ++number) put_values(store, number, number, {equal, equal});
  EXPECT_TRUE(table_files().empty());
  for (uint32_t position = 20; position < 25; ++position) put(store, position);
  EXPECT_EQ(table_files().size(), 1u);
  EXPECT_TRUE(is_coded(24));
}

// Values far outside what the tables were learned from are stored raw, until that is the rule.
TEST_F(CodedStore, LearnsAnewWhenMostDoesNotFit) {
  auto small = [&](uint32_t position, int32_t layer) {
    std::vector<std::byte> bytes = values(position, layer);
    for (size_t i = 0; i < bytes.size() / 2; ++i) {
      float value = load_element(kLayout.dtype, bytes.data(), i);
      put_element(kLayout.dtype, bytes, i, 1e-3f * value);
    }
    return bytes;
  };
  CacheStore store(options(), clock_);
  for (uint32_t n = 0; n < 4; ++n) put_values(store, n, n + 1, {small(n + 1, 0), small(n + 1, 1)});
  ASSERT_EQ(table_files().size(), 1u);
  fs::path outgrown = table_files()[0];
  for (uint32_t n = 10; n < 18; ++n) put(store, n);
  EXPECT_FALSE(is_coded(17));
  for (uint32_t n = 20; n < 24; ++n) put(store, n);
  EXPECT_EQ(table_files().size(), 2u);
  put(store, 30);
  EXPECT_TRUE(is_coded(30));
  fs::last_write_time(outgrown, fs::last_write_time(outgrown) - std::chrono::seconds(10));
  CacheStore later(options(), clock_);
  put(later, 31);
  EXPECT_TRUE(is_coded(31)) << "the newest tables are taken";
}

TEST_F(CodedStore, OfTwoProcessesOneLearns) {
  CacheStore first(options(), clock_);
  CacheStore second(options(), clock_);
  put(first, 20);
  put(second, 40);
  for (uint32_t position = 0; position < 4; ++position) put(first, position);
  ASSERT_EQ(table_files().size(), 1u);
  for (uint32_t position = 10; position < 14; ++position) put(second, position);
  EXPECT_EQ(table_files().size(), 1u);
  EXPECT_TRUE(is_coded(13));
}

TEST_F(CodedStore, WaitsWhileAnotherProcessLearns) {
  CacheStore store(options(), clock_);
  FileSystem files;
  std::string model = options().coded_model.base.hex().substr(0, 16);
  auto turn = files.create(folder_.path() / "tmp" / ("tables-" + model + ".part"));
  ASSERT_TRUE(turn);
  for (uint32_t position = 0; position < 5; ++position) put(store, position);
  EXPECT_TRUE(table_files().empty());
  { FileHandle dead = std::move(*turn); }
  put(store, 6);
  EXPECT_EQ(table_files().size(), 1u) << "that process died";
}

TEST_F(CodedStore, StoresRawRatherThanDropWrites) {
  {
    CacheStore store(options(), clock_);
    for (uint32_t position = 0; position < 4; ++position) put(store, position);
  }
  StoreOptions busy = options();
  busy.write_queue_bytes = 3 * kLayout.layer_bytes();  // a block fills more than half of it
  CacheStore store(busy, clock_);
  put(store, 9);
  EXPECT_FALSE(is_coded(9));
  EXPECT_EQ(store.counters().dropped_writes, 0u);
}

TEST_F(CodedStore, UnknownLayoutsAndInt8KeepWhatTheyHave) {
  FileSystem files;
  KvLayout int8{.num_layers = 2, .num_kv_heads = 2, .head_dim = 32, .dtype = DType::kI8};
  for (KvLayout layout : {kLayout, KvLayout{}, int8}) {
    std::vector<std::shared_ptr<PendingWrite>> batch;
    std::vector<std::vector<std::byte>> kept;
    for (uint32_t position = 0; position < 4; ++position) {
      auto write = std::make_shared<PendingWrite>();
      write->label = {key(position), {}, position};
      for (int32_t layer : {0, 1}) {
        kept.push_back(values(position, layer));
        kept.back().resize(layout.num_layers > 0 ? layout.layer_bytes() : kLayout.layer_bytes());
        write->entries.push_back({{EntryKind::kKeyValue, layer}, kept.back(), nullptr});
      }
      batch.push_back(std::move(write));
    }
    TemporaryFolder folder;
    fs::create_directory(folder.path() / "tmp");
    TableFolder tables(files, folder.path(), options().coded_model, layout);
    EXPECT_EQ(tables.for_writing(batch) != nullptr, layout == kLayout);
  }
}

// Who turns positions otherwise has other values, whatever else is the same.
TEST_F(CodedStore, AnotherRotationHasTablesOfItsOwn) {
  {
    CacheStore store(options(), clock_);
    for (uint32_t position = 0; position < 4; ++position) put(store, position);
  }
  ASSERT_EQ(table_files().size(), 1u);
  StoreOptions turned = options();
  turned.coded_model.rotation.frequencies[3] *= 2;
  CacheStore store(turned, clock_);
  put(store, 9);
  EXPECT_FALSE(is_coded(9)) << "there are no tables for it yet";
  for (uint32_t position = 10; position < 13; ++position) put(store, position);
  EXPECT_EQ(table_files().size(), 2u);
  put(store, 13);
  EXPECT_TRUE(is_coded(13));
}

// A family that is told how finely to code does not go on with tables that were learned before.
TEST_F(CodedStore, OtherStepsHaveTablesOfTheirOwnAndOldPiecesKeepTheirs) {
  {
    CacheStore store(options(), clock_);
    for (uint32_t position = 0; position < 6; ++position) put(store, position);
  }
  ASSERT_EQ(table_files().size(), 1u);
  ASSERT_TRUE(is_coded(5));
  StoreOptions finer = options();
  finer.coded_model.step_factors.assign(num_step_factors(kLayout), 0.5f);
  CacheStore store(finer, clock_);
  put(store, 9);
  EXPECT_FALSE(is_coded(9)) << "there are no tables for it yet";
  for (uint32_t position = 10; position < 13; ++position) put(store, position);
  EXPECT_EQ(table_files().size(), 2u);
  put(store, 13);
  EXPECT_TRUE(is_coded(13));
  EXPECT_GT(size_of_block(13), size_of_block(5));
  store.clear_host();
  EXPECT_TRUE(store.fetch(key(5), {EntryKind::kKeyValue, 1})) << "its tables are still there";
  EXPECT_TRUE(store.fetch(key(13), {EntryKind::kKeyValue, 1}));
}

// What was coded with other steps is no hit: answers would depend on who wrote first.
TEST_F(CodedStore, StepsArePartOfTheKeysWhereKvMayBeCoded) {
  StoreOptions finer = options();
  finer.coded_model.step_factors.assign(num_step_factors(kLayout), 0.5f);
  EXPECT_NE(CacheStore(options(), clock_).formats().coding, Digest{});
  EXPECT_NE(CacheStore(finer, clock_).formats().coding,
            CacheStore(options(), clock_).formats().coding);
  finer.disk_format = DiskFormat::kRaw;
  EXPECT_EQ(CacheStore(finer, clock_).formats().coding, Digest{}) << "nothing is coded";
}

TEST(CodedModel, IsToldApartByWhatItsTablesDependOn) {
  CodedModel plain{test_key(1), {{0.5f, 0.25f}, {}}};
  EXPECT_EQ(digest_of(plain), plain.base) << "folders and servers of older programs stay known";
  CodedModel finer = plain;
  finer.step_factors = {1.0f, 0.5f};
  CodedModel coarser = plain;
  coarser.step_factors = {1.0f, 2.0f};
  CodedModel unturned = plain;
  unturned.rotation.unturned_layers = {3};
  CodedModel another = finer;
  another.base = test_key(2);
  std::set<std::string> names;
  for (const CodedModel* model : {&plain, &finer, &coarser, &unturned, &another})
    names.insert(digest_of(*model).hex());
  EXPECT_EQ(names.size(), 5u);
}

}  // namespace
}  // namespace droidspeak
