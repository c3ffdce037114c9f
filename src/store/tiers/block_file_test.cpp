#include "store/tiers/block_file.h"

#include <algorithm>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "store/test_entries.h"
#include "store/tiers/block_writer.h"
#include "store/tiers/int8_codec.h"

namespace droidspeak {
namespace {

BlockFileHeader some_header() {
  BlockFileHeader header;
  header.key = test_key(1);
  header.owner = test_key(2);
  header.position = 5;
  header.layout = {.num_layers = 30, .num_kv_heads = 3, .head_dim = 64, .dtype = DType::kF16};
  header.entries = {
      {.id = kv(0),
       .stored_bytes = header.layout.layer_bytes(),
       .bytes = header.layout.layer_bytes(),
       .checksum = 1},
      {.id = kv(1),
       .encoding = EntryEncoding::kInt8,
       .stored_bytes = int8_bytes(header.layout),
       .bytes = header.layout.layer_bytes(),
       .checksum = 2},
      {.id = input(0), .stored_bytes = 333, .bytes = 333, .checksum = 3},
  };
  place_entries(header);
  return header;
}

TEST(BlockFile, ReadsTheHeaderItWrote) {
  BlockFileHeader header = some_header();
  std::vector<std::byte> bytes = write_header(header);
  ASSERT_EQ(*header_bytes_of(bytes), bytes.size());
  Result<BlockFileHeader> read = parse_header(bytes, header.file_bytes);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->key, header.key);
  EXPECT_EQ(read->owner, header.owner);
  EXPECT_EQ(read->position, 5u);
  EXPECT_EQ(read->layout, header.layout);
  ASSERT_EQ(read->entries.size(), 3u);
  EXPECT_EQ(read->find(kv(1))->encoding, EntryEncoding::kInt8);
  EXPECT_EQ(read->find(input(0))->offset % kEntryAlignment, 0u);
  EXPECT_EQ(read->find(input(0))->checksum, 3u);
  EXPECT_EQ(read->find(input(1)), nullptr);
}

TEST(BlockFile, HeadersOfManyEntriesGrow) {
  BlockFileHeader header;
  for (int32_t layer = 0; layer < 500; ++layer) {
    header.entries.push_back({.id = kv(layer), .stored_bytes = 10, .bytes = 10});
  }
  place_entries(header);
  std::vector<std::byte> bytes = write_header(header);
  EXPECT_GT(bytes.size(), kHeaderAlignment);
  EXPECT_EQ(*header_bytes_of(std::span(bytes).first(kHeaderAlignment)), bytes.size());
  EXPECT_FALSE(parse_header(std::span(bytes).first(kHeaderAlignment), header.file_bytes));
  EXPECT_TRUE(parse_header(bytes, header.file_bytes));
}

TEST(BlockFile, EveryFlippedBitOfTheHeaderIsNoticed) {
  BlockFileHeader header = some_header();
  const std::vector<std::byte> bytes = write_header(header);
  size_t used = 128 + 40 * header.entries.size() + 8;
  for (size_t bit = 0; bit < used * 8; ++bit) {
    std::vector<std::byte> wrong = bytes;
    wrong[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_FALSE(parse_header(wrong, header.file_bytes)) << "bit " << bit;
  }
}

TEST(BlockFile, TooShortOrTooLongFilesAreNoticed) {
  BlockFileHeader header = some_header();
  std::vector<std::byte> bytes = write_header(header);
  for (size_t size : {size_t{0}, size_t{1}, size_t{127}, size_t{128}, size_t{200}, size_t{4095}}) {
    EXPECT_FALSE(parse_header(std::span(bytes).first(size), header.file_bytes)) << size;
  }
  EXPECT_FALSE(parse_header(bytes, header.file_bytes - 1));
  EXPECT_FALSE(parse_header(bytes, header.file_bytes + 1));
}

// Consistent checksums do not make wrong numbers right.
TEST(BlockFile, RefusesEntriesThatDoNotFit) {
  auto refused = [](auto change) {
    BlockFileHeader header = some_header();
    change(header);
    Result<BlockFileHeader> read = parse_header(write_header(header), header.file_bytes);
    return !read && read.error().code == ErrorCode::kDataCorrupt;
  };
  EXPECT_TRUE(refused([](BlockFileHeader& h) { h.entries[0].offset += 64; }));
  EXPECT_TRUE(refused([](BlockFileHeader& h) { h.entries[0].bytes = 99; }));
  EXPECT_TRUE(refused([](BlockFileHeader& h) { h.entries[1].bytes -= 2; }));
  EXPECT_TRUE(refused([](BlockFileHeader& h) { h.entries[1].stored_bytes = UINT64_MAX - 4000; }));
  EXPECT_TRUE(refused([](BlockFileHeader& h) { h.entries[2].stored_bytes += 1; }));
  EXPECT_TRUE(refused([](BlockFileHeader& h) { std::swap(h.entries[0].id, h.entries[1].id); }));
  EXPECT_TRUE(refused([](BlockFileHeader& h) { h.entries[1].id = h.entries[0].id; }));
  EXPECT_TRUE(refused([](BlockFileHeader& h) { h.entries[0].id.layer = -1; }));
  EXPECT_TRUE(
      refused([](BlockFileHeader& h) { h.entries[0].id.kind = static_cast<EntryKind>(7); }));
  EXPECT_TRUE(refused([](BlockFileHeader& h) { h.layout.head_dim = 1 << 20; }));
  EXPECT_TRUE(refused([](BlockFileHeader& h) { h.layout.head_dim = 0; }));
  EXPECT_TRUE(refused([](BlockFileHeader& h) { h.layout.num_kv_heads = 0; }));
  EXPECT_TRUE(refused([](BlockFileHeader& h) { h.layout.num_layers = 1; })) << "layer 1 is outside";
  EXPECT_TRUE(refused([](BlockFileHeader& h) {
    h.entries[0].bytes = h.entries[0].stored_bytes = 100;  // no layer of K/V
    place_entries(h);
  }));
  EXPECT_TRUE(refused([](BlockFileHeader& h) {
    h.entries[2].encoding = EntryEncoding::kInt8;  // only K/V is encoded
    h.entries[2].stored_bytes = h.entries[1].stored_bytes;
    h.entries[2].bytes = h.entries[1].bytes;
    place_entries(h);
  }));
  EXPECT_TRUE(refused([](BlockFileHeader& h) { h.file_bytes = 100; }));
  EXPECT_TRUE(refused([](BlockFileHeader& h) { h.file_bytes += 64; })) << "nobody's bytes";
}

// A program that knows no coded entries must take the file for a newer one's, not for a damaged
// one.
TEST(BlockFile, OnlyCodedEntriesNeedTheNewestVersion) {
  BlockFileHeader header = some_header();
  EXPECT_EQ(write_header(header)[8], std::byte{2});
  header.entries[0].encoding = EntryEncoding::kCoded;
  EXPECT_EQ(write_header(header)[8], std::byte{3});
}

TEST(BlockFile, TellsOlderFromNewerVersions) {
  BlockFileHeader header = some_header();
  std::vector<std::byte> bytes = write_header(header);
  bytes[8] = std::byte{kNewestBlockFileVersion + 1};
  Result<BlockFileHeader> read = parse_header(bytes, header.file_bytes);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::kUnavailable) << "a newer program's file is not damaged";
  bytes[8] = std::byte{kOldestBlockFileVersion - 1};
  read = parse_header(bytes, header.file_bytes);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::kNotFound) << "nobody asks for it any more";
}

TEST(BlockFile, NamesTellTheKeyAndDifferByContent) {
  BlockFileHeader header = some_header();
  std::string name = block_file_name(header);
  EXPECT_EQ(key_of_block_file(name.substr(0, 2), name.substr(3)), header.key);
  BlockFileHeader other = header;
  other.entries.pop_back();
  EXPECT_NE(block_file_name(other), name);
  other = header;
  other.entries[0].checksum = 99;
  EXPECT_EQ(block_file_name(other), name) << "values do not matter";
  EXPECT_FALSE(key_of_block_file("ab", "short.kv"));
  EXPECT_FALSE(key_of_block_file("zz", name.substr(3)));
  EXPECT_FALSE(key_of_block_file("ab", name.substr(3) + ".part"));
}

bool is_parsed(BlockFileHeader header) {
  place_entries(header);
  return bool{parse_header(write_header(header), header.file_bytes)};
}

TEST(BlockFile, LayoutsHaveSizesUpToTheirBounds) {
  BlockFileHeader header = some_header();
  header.entries = {{.id = input(0), .stored_bytes = 10, .bytes = 10}};
  for (int32_t KvLayout::*size :
       {&KvLayout::num_layers, &KvLayout::num_kv_heads, &KvLayout::head_dim}) {
    BlockFileHeader edge = header;
    edge.layout.*size = 1 << 16;
    EXPECT_TRUE(is_parsed(edge));
    edge.layout.*size = (1 << 16) + 1;
    EXPECT_FALSE(is_parsed(edge));
    edge.layout.*size = 1;
    EXPECT_TRUE(is_parsed(edge));
  }
  header.layout = {};
  EXPECT_TRUE(is_parsed(header)) << "of a layout that nobody knows";
}

TEST(BlockFile, LayersLieInTheLayout) {
  BlockFileHeader header = some_header();
  header.entries = {{.id = input(29), .stored_bytes = 10, .bytes = 10}};
  EXPECT_TRUE(is_parsed(header));
  header.entries[0].id = input(30);
  EXPECT_FALSE(is_parsed(header));
  header.layout = {};
  EXPECT_TRUE(is_parsed(header));
}

TEST(BlockFile, CodedEntriesAreKvAndSmallerThanTheirValues) {
  BlockFileHeader header = some_header();
  const uint64_t bytes = header.layout.layer_bytes();
  header.entries = {
      {.id = kv(0), .encoding = EntryEncoding::kCoded, .stored_bytes = bytes - 1, .bytes = bytes}};
  EXPECT_TRUE(is_parsed(header));
  BlockFileHeader wrong = header;
  wrong.entries[0].stored_bytes = bytes;
  EXPECT_FALSE(is_parsed(wrong));
  wrong = header;
  wrong.entries[0].id = input(0);
  EXPECT_FALSE(is_parsed(wrong));
  wrong = header;
  wrong.layout = {};
  EXPECT_FALSE(is_parsed(wrong));
  wrong = header;
  wrong.layout.dtype = DType::kI8;
  wrong.entries[0].bytes = wrong.layout.layer_bytes();
  wrong.entries[0].stored_bytes = 100;
  EXPECT_FALSE(is_parsed(wrong));
  wrong = header;
  wrong.entries[0].encoding = static_cast<EntryEncoding>(3);
  EXPECT_FALSE(is_parsed(wrong));
}

TEST(BlockFile, HasOneToSoManyEntries) {
  BlockFileHeader header;
  for (int32_t layer = 0; layer < 4096; ++layer)
    header.entries.push_back({.id = input(layer), .stored_bytes = 1, .bytes = 1});
  EXPECT_TRUE(is_parsed(header));
  place_entries(header);
  std::vector<std::byte> bytes = write_header(header);
  for (uint32_t count : {0u, 4097u}) {
    std::memcpy(bytes.data() + 12, &count, sizeof count);
    Result<size_t> size = header_bytes_of(bytes);
    ASSERT_FALSE(size) << count;
    EXPECT_EQ(size.error().code, ErrorCode::kDataCorrupt);
  }
}

TEST(BlockFile, NamesAreOfOneForm) {
  const std::string name = block_file_name(some_header());
  const std::string folder = name.substr(0, 2);
  const std::string file = name.substr(3);
  ASSERT_TRUE(key_of_block_file(folder, file));
  EXPECT_FALSE(key_of_block_file(folder + "0", file.substr(1) + "x"));
  std::string wrong = file;
  wrong[62] = '_';
  EXPECT_FALSE(key_of_block_file(folder, wrong));
  wrong = file;
  wrong[5] = 'A';
  EXPECT_FALSE(key_of_block_file(folder, wrong));
  EXPECT_FALSE(key_of_block_file(folder, file.substr(0, file.size() - 3) + ".ks"));
  EXPECT_FALSE(key_of_block_file(folder, file.substr(0, file.size() - 4) + ".kv"));
}

}  // namespace
}  // namespace droidspeak
