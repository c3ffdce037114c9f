#include "formats/gguf.h"

#include <array>
#include <cstring>
#include <fstream>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace droidspeak {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::filesystem::path golden_path(const std::string& name) {
  return std::filesystem::path(DROIDSPEAK_SOURCE_DIR) / "tests/data/formats" / name;
}

// Numbers of value and tensor types in the file.
constexpr uint32_t kUint32 = 4;
constexpr uint32_t kBool = 7;
constexpr uint32_t kString = 8;
constexpr uint32_t kArray = 9;
constexpr uint32_t kUint64 = 10;
constexpr uint32_t kF32 = 0;
constexpr uint32_t kQ80 = 8;
constexpr uint32_t kIq2Xs = 17;

// Bytes of a GGUF file, right or wrong.
class Bytes {
 public:
  template <class T>
  Bytes& add(T value) {
    content_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }

  Bytes& text(std::string_view value) {
    add<uint64_t>(value.size());
    content_ += value;
    return *this;
  }

  Bytes& append(const Bytes& other) {
    content_ += other.content_;
    return *this;
  }

  const std::string& content() const { return content_; }

 private:
  std::string content_;
};

struct TensorEntry {
  std::string name = "weight";
  std::vector<uint64_t> dims = {4};
  uint32_t type = kF32;
  uint64_t offset = 0;

  Bytes bytes() const {
    Bytes result;
    result.text(name).add(static_cast<uint32_t>(dims.size()));
    for (uint64_t size : dims) result.add(size);
    return result.add(type).add(offset);
  }
};

Bytes key(std::string_view name, uint32_t type) {
  return Bytes().text(name).add(type);
}

struct FileParts {
  uint32_t version = 3;
  std::vector<Bytes> keys = {};
  std::vector<TensorEntry> tensors = {};
  size_t data_bytes = 256;

  std::string content() const {
    Bytes bytes;
    bytes.add(std::array<char, 4>{'G', 'G', 'U', 'F'}).add(version);
    bytes.add<uint64_t>(tensors.size()).add<uint64_t>(keys.size());
    for (const Bytes& entry : keys) bytes.append(entry);
    for (const TensorEntry& tensor : tensors) bytes.append(tensor.bytes());
    std::string result = bytes.content();
    result.resize((result.size() + 31) / 32 * 32 + data_bytes);
    return result;
  }
};

class Gguf : public testing::Test {
 protected:
  GgufFile open(const std::string& content) {
    std::ofstream(path_, std::ios::binary) << content;
    return GgufFile(path_);
  }

  // What it fails with, or "" when it opens.
  std::string failure(const std::string& content) {
    try {
      open(content);
    } catch (const Failure& failure) {
      EXPECT_THAT(failure.what(), HasSubstr(path_.string() + ": "));
      EXPECT_EQ(std::string_view(failure.what()).find('\n'), std::string_view::npos);
      return failure.what();
    }
    return "";
  }

  std::string failure(const FileParts& parts) { return failure(parts.content()); }

  std::string failure(const TensorEntry& tensor) { return failure(FileParts{.tensors = {tensor}}); }

  std::string failure(const Bytes& entry) { return failure(FileParts{.keys = {entry}}); }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_.path() / "model.gguf";
};

class GgufGolden : public testing::TestWithParam<DType> {};

TEST_P(GgufGolden, DequantisesToTheValuesOfTheReference) {
  GgufFile file(golden_path(std::string(name_of(GetParam())) + ".gguf"));
  const FileTensor* weight = file.find_tensor("weight");
  const FileTensor* expected = file.find_tensor("expected");
  ASSERT_NE(weight, nullptr);
  ASSERT_NE(expected, nullptr);
  EXPECT_EQ(weight->dtype, GetParam());
  EXPECT_EQ(weight->shape, expected->shape);
  std::vector<float> values = weight->read_floats();
  std::vector<float> wanted = expected->read_floats();
  ASSERT_EQ(values.size(), wanted.size());
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], wanted[i]) << "element " << i;
}

INSTANTIATE_TEST_SUITE_P(AllTypes,
                         GgufGolden,
                         testing::Values(DType::kF32,
                                         DType::kF16,
                                         DType::kBF16,
                                         DType::kQ8_0,
                                         DType::kQ4_0,
                                         DType::kQ4_1,
                                         DType::kQ5_0,
                                         DType::kQ5_1,
                                         DType::kQ4_K,
                                         DType::kQ5_K,
                                         DType::kQ6_K,
                                         DType::kQ2_K,
                                         DType::kQ3_K,
                                         DType::kIQ4_NL,
                                         DType::kIQ4_XS,
                                         DType::kMXFP4),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_F(Gguf, ReadsVersion2) {
  GgufFile file(golden_path("version_2.gguf"));
  EXPECT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.get_string("general.architecture"), "llama");
}

TEST_F(Gguf, ReadsEveryKindOfMetadata) {
  GgufFile file(golden_path("metadata.gguf"));
  EXPECT_EQ(file.get_int("test.uint8"), 200);
  EXPECT_EQ(file.get_int("test.int8"), -100);
  EXPECT_EQ(file.get_int("test.uint16"), 60000);
  EXPECT_EQ(file.get_int("test.int16"), -30000);
  EXPECT_EQ(file.get_int("test.uint32"), 4'000'000'000);
  EXPECT_EQ(file.get_int("test.int32"), -2'000'000'000);
  EXPECT_EQ(file.get_int("test.int64"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(std::get<uint64_t>(*file.find("test.uint64")), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(file.get_double("test.float32"), 0.25);
  EXPECT_EQ(file.get_double("test.float64"), 1e300);
  EXPECT_EQ(file.get_double("test.int8"), -100);
  EXPECT_TRUE(file.get_bool_or("test.bool", false));
  EXPECT_EQ(file.get_string("test.string"),
            "gr\xc3\xbc\xc3\x9f"
            "e");
  EXPECT_THAT(std::get<std::vector<int64_t>>(*file.find("test.ints")), ElementsAre(1, -2, 3));
  EXPECT_THAT(std::get<std::vector<int64_t>>(*file.find("test.bools")), ElementsAre(1, 0));
  EXPECT_THAT(std::get<std::vector<double>>(*file.find("test.floats")), ElementsAre(0.5, -1.5));
  EXPECT_THAT(file.get_strings("test.strings"), ElementsAre("a", "", "\xe4\xbd\xa0\xe5\xa5\xbd"));
}

TEST_F(Gguf, TensorsHaveTheOutermostDimensionFirstAndFollowTheAlignment) {
  GgufFile file(golden_path("metadata.gguf"));
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors()[0].name, "cube");
  EXPECT_THAT(file.tensors()[0].shape, ElementsAre(2, 3, 4));
  const FileTensor* vector = file.find_tensor("vector");
  ASSERT_NE(vector, nullptr);
  EXPECT_THAT(vector->read_floats(), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(file.find_tensor("other"), nullptr);
}

TEST_F(Gguf, GettersNameFileAndKey) {
  GgufFile file(golden_path("metadata.gguf"));
  auto message = [&](auto get) -> std::string {
    try {
      get();
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "";
  };
  EXPECT_THAT(message([&] { file.get_int("llama.block_count"); }),
              AllOf(HasSubstr("metadata.gguf: "), HasSubstr("'llama.block_count' is missing")));
  EXPECT_THAT(message([&] { file.get_int("test.string"); }),
              HasSubstr("'test.string' is a string; an integer is needed"));
  EXPECT_THAT(message([&] { file.get_int("test.uint64"); }), HasSubstr("18446744073709551615"));
  EXPECT_THAT(message([&] { file.get_string("test.ints"); }), HasSubstr("an array of integers"));
  EXPECT_THAT(message([&] { file.get_strings("test.floats"); }), HasSubstr("an array of numbers"));
  EXPECT_THAT(message([&] { file.get_double_or("test.bool", 1); }), HasSubstr("is a bool"));
  EXPECT_THAT(message([&] { file.get_bool_or("test.int8", true); }), HasSubstr("is an integer"));
}

TEST_F(Gguf, MissingKeysFallBack) {
  GgufFile file(golden_path("metadata.gguf"));
  EXPECT_EQ(file.get_int_or("none", 5), 5);
  EXPECT_EQ(file.get_double_or("none", 0.5), 0.5);
  EXPECT_TRUE(file.get_bool_or("none", true));
  EXPECT_EQ(file.get_string_or("none", "x"), "x");
  EXPECT_EQ(file.get_int_or("test.uint8", 5), 200);
  EXPECT_EQ(file.find("none"), nullptr);
}

TEST_F(Gguf, TensorsStayValidWhenTheFileObjectMoves) {
  GgufFile first(golden_path("f32.gguf"));
  FileTensor tensor = *first.find_tensor("weight");
  std::vector<std::byte> bytes = tensor.read();
  GgufFile second = std::move(first);
  EXPECT_EQ(second.find_tensor("weight")->read(), bytes);
  EXPECT_EQ(tensor.read(), bytes) << "a tensor keeps its file open";
}

TEST_F(Gguf, AFileWithoutTensorsOpens) {
  EXPECT_EQ(failure(FileParts{.data_bytes = 0}), "");
  EXPECT_EQ(
      failure(FileParts{.keys = {key("a", kArray).add(kString).add<uint64_t>(0)}, .data_bytes = 0}),
      "");
}

TEST_F(Gguf, RefusesWhatIsNoGguf) {
  EXPECT_THAT(failure("GGML" + std::string(100, 'x')), HasSubstr("not a GGUF file"));
  EXPECT_THAT(failure("GG"), HasSubstr("magic"));
  EXPECT_THAT(failure(FileParts{.version = 1}), HasSubstr("GGUF version 1; versions 2 and 3"));
  EXPECT_THAT(failure(FileParts{.version = 4}), HasSubstr("GGUF version 4"));
  EXPECT_THROW(GgufFile(golden_path("big_endian.gguf")), Failure);
  EXPECT_THAT(failure(FileParts{.version = 0x03000000}), HasSubstr("big-endian"));
}

TEST_F(Gguf, RefusesCountsAndLengthsBeyondTheFile) {
  for (uint64_t huge : {uint64_t{1} << 20, uint64_t{1} << 63, ~uint64_t{0}}) {
    std::string content = FileParts().content();
    std::memcpy(content.data() + 8, &huge, 8);
    EXPECT_THAT(failure(content), HasSubstr("tensor count"));
    content = FileParts().content();
    std::memcpy(content.data() + 16, &huge, 8);
    EXPECT_THAT(failure(content), HasSubstr("metadata count"));
    EXPECT_THAT(failure(key("k", kString).add(huge)), HasSubstr("metadata key 'k'"));
    EXPECT_THAT(failure(key("k", kArray).add(kString).add(huge)), HasSubstr("metadata key 'k'"));
    EXPECT_THAT(failure(key("k", kArray).add(kUint64).add(huge)), HasSubstr("does not fit"));
    EXPECT_THAT(failure(Bytes().add(huge)), HasSubstr("metadata key"));
  }
}

TEST_F(Gguf, RefusesBadMetadata) {
  EXPECT_THAT(failure(key("k", kArray).add(kArray).add<uint64_t>(1)),
              HasSubstr("metadata key 'k': an array of arrays"));
  EXPECT_THAT(failure(key("k", 13).add<uint64_t>(0)), HasSubstr("value type 13 is unknown"));
  EXPECT_THAT(failure(key("k", kArray).add<uint32_t>(99).add<uint64_t>(1)), HasSubstr("type 99"));
  EXPECT_THAT(failure(key("k", kBool).add<uint8_t>(2)), HasSubstr("2 is no bool"));
  EXPECT_THAT(failure(key("k", kArray).add(kBool).add<uint64_t>(1).add<uint8_t>(7)),
              HasSubstr("7 is no bool"));
  EXPECT_THAT(failure(key("", kUint32).add<uint32_t>(0)), HasSubstr("has 0 bytes"));
  EXPECT_THAT(failure(key(std::string(70000, 'k'), kUint32).add<uint32_t>(0)), HasSubstr("70000"));
  Bytes entry = key("twice", kUint32).add<uint32_t>(0);
  EXPECT_THAT(failure(FileParts{.keys = {entry, entry}}),
              HasSubstr("metadata key 'twice' appears twice"));
  EXPECT_THAT(failure(key("k", kArray).add(kUint64).add<uint64_t>(1).add(~uint64_t{0})),
              HasSubstr("18446744073709551615 is too large"));
}

TEST_F(Gguf, RefusesBadAlignment) {
  for (uint32_t alignment : {0u, 1u, 24u, 0x80000000u}) {
    EXPECT_THAT(failure(key("general.alignment", kUint32).add(alignment)),
                HasSubstr("'general.alignment': " + std::to_string(alignment)));
  }
  EXPECT_THAT(failure(key("general.alignment", kString).text("x")), HasSubstr("general.alignment"));
}

TEST_F(Gguf, NamesTheTypeThatIsNotSupported) {
  EXPECT_THAT(failure(TensorEntry{.name = "blk.0.attn_q.weight", .dims = {256}, .type = kIq2Xs}),
              HasSubstr("tensor 'blk.0.attn_q.weight': type iq2_xs (number 17) is not supported"));
  EXPECT_THAT(failure(TensorEntry{.type = 4000}), HasSubstr("type unknown (number 4000)"));
}

TEST_F(Gguf, RefusesBadShapes) {
  EXPECT_THAT(failure(TensorEntry{.dims = {}}), HasSubstr("'weight': 0 dimensions"));
  EXPECT_THAT(failure(TensorEntry{.dims = {1, 1, 1, 1, 1}}), HasSubstr("5 dimensions"));
  EXPECT_THAT(failure(TensorEntry{.dims = {4, 0}}), HasSubstr("a dimension of 0"));
  EXPECT_THAT(failure(TensorEntry{.dims = {~uint64_t{0}}}), HasSubstr("2^63 - 1"));
  EXPECT_THAT(failure(TensorEntry{.dims = {1ull << 32, 1ull << 32}}), HasSubstr("2^63 - 1"));
  EXPECT_THAT(failure(TensorEntry{.dims = {1ull << 62}}), HasSubstr("more bytes than the file"));
  EXPECT_THAT(failure(TensorEntry{.dims = {33}, .type = kQ80}),
              HasSubstr("no multiple of the q8_0"));
  EXPECT_THAT(failure(TensorEntry{.dims = {16, 2}, .type = kQ80}), HasSubstr("rows of 16"));
}

TEST_F(Gguf, RefusesBadTensorNames) {
  EXPECT_THAT(failure(TensorEntry{.name = ""}), HasSubstr("has 0 bytes"));
  EXPECT_EQ(failure(TensorEntry{.name = std::string(256, 'n')}), "");
  EXPECT_THAT(failure(TensorEntry{.name = std::string(257, 'n')}), HasSubstr("has 257 bytes"));
  EXPECT_THAT(failure(FileParts{.tensors = {{.name = "t"}, {.name = "t", .offset = 32}}}),
              HasSubstr("tensor 't' appears twice"));
  EXPECT_THAT(failure(TensorEntry{.name = "a\nb", .type = kIq2Xs}), HasSubstr("'a\\x0ab'"));
}

TEST_F(Gguf, RefusesBadOffsets) {
  EXPECT_THAT(failure(TensorEntry{.offset = 4}), HasSubstr("offset 4 is no multiple"));
  EXPECT_THAT(failure(TensorEntry{.offset = 256}), HasSubstr("past the end of the file"));
  EXPECT_THAT(failure(TensorEntry{.offset = ~uint64_t{31}}), HasSubstr("past the end"));
  EXPECT_THAT(failure(TensorEntry{.dims = {65}}), HasSubstr("260 bytes at offset 0"));
  EXPECT_EQ(failure(TensorEntry{.dims = {64}}), "");
  EXPECT_THAT(
      failure(FileParts{.tensors = {{.name = "a", .dims = {16}}, {.name = "b", .offset = 32}}}),
      HasSubstr("tensor 'b': offset 32 lies inside tensor 'a'"));
  EXPECT_THAT(failure(FileParts{.tensors = {{}}, .data_bytes = 0}), HasSubstr("past the end"));
}

TEST_F(Gguf, NamesAMissingFile) {
  EXPECT_THROW(GgufFile(folder_.path() / "none.gguf"), Failure);
  EXPECT_THAT(failure(std::string()), HasSubstr("empty"));
}

}  // namespace
}  // namespace droidspeak
