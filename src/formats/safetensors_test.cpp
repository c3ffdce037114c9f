#include "formats/safetensors.h"

#include <array>
#include <bit>
#include <fstream>

#include <fmt/format.h>
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

std::vector<float> values_of(const FileTensor* tensor) {
  if (tensor == nullptr) return {};
  return tensor->read_floats();
}

// -1.5, -1.25, ... 1.25: what every 3 x 4 tensor of the goldens holds.
std::vector<float> grid() {
  std::vector<float> values;
  for (int i = -6; i < 6; ++i) values.push_back(0.25f * static_cast<float>(i));
  return values;
}

std::string with_length(std::string_view header, size_t data_bytes) {
  auto length = std::bit_cast<std::array<char, 8>>(uint64_t{header.size()});
  return std::string(length.data(), length.size()) + std::string(header) +
         std::string(data_bytes, '\0');
}

void write(const std::filesystem::path& path, std::string_view content) {
  std::ofstream(path, std::ios::binary) << content;
}

// What `open` fails with, or "" when it does not.
template <class Open>
std::string failure_of(Open open) {
  try {
    open();
  } catch (const Failure& failure) {
    EXPECT_EQ(std::string_view(failure.what()).find('\n'), std::string_view::npos);
    return failure.what();
  }
  return "";
}

class Safetensors : public testing::Test {
 protected:
  std::string failure(const std::string& content) {
    write(path_, content);
    return failure_of([&] { SafetensorsFile file(path_); });
  }

  // A header with 8 bytes of tensors behind it.
  std::string header_failure(std::string_view header) { return failure(with_length(header, 8)); }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_.path() / "model.safetensors";
};

TEST_F(Safetensors, ReadsTheThreeDTypesAndTheMetadata) {
  SafetensorsFile file(golden_path("model.safetensors"));
  EXPECT_EQ(file.find_tensor("full")->dtype, DType::kF32);
  EXPECT_EQ(file.find_tensor("half")->dtype, DType::kF16);
  EXPECT_EQ(file.find_tensor("brain")->dtype, DType::kBF16);
  for (const char* name : {"full", "half", "brain"}) {
    EXPECT_THAT(file.find_tensor(name)->shape, ElementsAre(3, 4));
    EXPECT_EQ(values_of(file.find_tensor(name)), grid()) << name;
  }
  EXPECT_THAT(values_of(file.find_tensor("scalar")), ElementsAre(7));
  EXPECT_TRUE(file.find_tensor("scalar")->shape.empty());
  EXPECT_THAT(file.find_tensor("empty")->shape, ElementsAre(0, 4));
  EXPECT_EQ(file.find_tensor("none"), nullptr);
  EXPECT_EQ(file.metadata().at("format"), "pt");
}

TEST_F(Safetensors, RefusesAnUnsupportedDTypeOnlyWhenItsTensorIsAskedFor) {
  SafetensorsFile file(golden_path("model.safetensors"));
  EXPECT_EQ(file.tensors().size(), 5u);
  EXPECT_TRUE(file.contains("positions"));
  EXPECT_FALSE(file.contains("none"));
  EXPECT_THAT(
      failure_of([&] { file.find_tensor("positions"); }),
      AllOf(HasSubstr("model.safetensors: "), HasSubstr("tensor 'positions': dtype 'I64'")));
}

// Minutes where the time is quadratic.
TEST_F(Safetensors, RefusesManyEmptyEntriesSoon) {
  std::string header = "{";
  for (int i = 0; i < 500'000; ++i) header += fmt::format(R"({}"{:06}":{{}})", i > 0 ? "," : "", i);
  EXPECT_THAT(header_failure(header + "}"), HasSubstr("\"dtype\" is missing"));
}

TEST_F(Safetensors, RefusesHeadersOverTheCallersLimit) {
  write(path_, with_length("{}" + std::string(98, ' '), 0));
  EXPECT_EQ(failure_of([&] { SafetensorsFile file(path_, 100); }), "");
  EXPECT_THAT(failure_of([&] { SafetensorsFile file(path_, 99); }),
              HasSubstr("header length 100; at most 99 is allowed"));
}

TEST_F(Safetensors, RefusesBadHeaders) {
  EXPECT_THAT(failure("abc"), HasSubstr("header length"));
  EXPECT_THAT(failure(std::string(8, '\xff')), HasSubstr("18446744073709551615; at most 16777216"));
  EXPECT_THAT(failure(with_length("{}", 0).substr(0, 9)), HasSubstr("past the end of the file"));
  EXPECT_THAT(header_failure(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(header_failure("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(header_failure("[]"), HasSubstr("a JSON object is needed"));
  EXPECT_THAT(header_failure("{\"\xff\":1}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(header_failure(std::string(1'000'000, '[')),
              HasSubstr("nested deeper than 3 levels"));
  EXPECT_THAT(header_failure(R"({"a":1,"a":2})"), HasSubstr("tensor 'a' appears twice"));
  EXPECT_THAT(header_failure(R"({"__metadata__":{"a":1}})"), HasSubstr("'a' is no string"));
  EXPECT_THAT(header_failure(R"({"__metadata__":"a"})"), HasSubstr("__metadata__"));
}

TEST_F(Safetensors, RefusesBadEntries) {
  auto entry = [&](std::string_view fields) {
    return header_failure("{\"t\":{" + std::string(fields) + "}}");
  };
  EXPECT_THAT(header_failure(R"({"t":[]})"), HasSubstr("tensor 't': a JSON object"));
  EXPECT_THAT(entry(R"("shape":[2],"data_offsets":[0,8])"), HasSubstr("\"dtype\" is missing"));
  EXPECT_THAT(entry(R"("dtype":1,"shape":[2],"data_offsets":[0,8])"), HasSubstr("\"dtype\""));
  EXPECT_THAT(entry(R"("dtype":"F32","shape":2,"data_offsets":[0,8])"), HasSubstr("\"shape\""));
  EXPECT_THAT(entry(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), HasSubstr("\"shape\""));
  EXPECT_THAT(entry(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), HasSubstr("\"shape\""));
  EXPECT_THAT(entry(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8])"),
              HasSubstr("9223372036854775808 is too large"));
  EXPECT_THAT(entry(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), HasSubstr("data_offsets"));
  EXPECT_THAT(entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,"8"])"),
              HasSubstr("data_offsets"));
  EXPECT_EQ(entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), "");
}

TEST_F(Safetensors, RefusesOffsetsThatDoNotFitTheFileOrTheShape) {
  auto tensor = [](std::string_view name, std::string_view shape, std::string_view offsets) {
    return "\"" + std::string(name) + R"(":{"dtype":"F32","shape":)" + std::string(shape) +
           R"(,"data_offsets":)" + std::string(offsets) + "}";
  };
  auto failure_of_tensors = [&](const std::string& tensors) {
    return header_failure("{" + tensors + "}");
  };
  EXPECT_THAT(failure_of_tensors(tensor("t", "[3]", "[0,12]")), HasSubstr("outside the file's 8"));
  EXPECT_THAT(failure_of_tensors(tensor("t", "[2]", "[8,0]")), HasSubstr("[8, 0] lie outside"));
  EXPECT_THAT(failure_of_tensors(tensor("t", "[3]", "[0,8]")),
              HasSubstr("not the size of F32 [3]"));
  EXPECT_THAT(failure_of_tensors(tensor("t", "[4294967296,4294967296]", "[0,8]")),
              HasSubstr("not the size of"));
  EXPECT_THAT(failure_of_tensors(tensor("t", "[1]", "[4,8]")), HasSubstr("where 0 is expected"));
  EXPECT_THAT(failure_of_tensors(tensor("t", "[1]", "[0,4]")), HasSubstr("8 bytes of tensors"));
  EXPECT_THAT(failure_of_tensors(tensor("a", "[2]", "[0,8]") + "," + tensor("b", "[1]", "[4,8]")),
              HasSubstr("tensor 'b': data_offsets start at 4 where 8"));
  EXPECT_EQ(failure_of_tensors(tensor("b", "[1]", "[4,8]") + "," + tensor("a", "[1]", "[0,4]")),
            "");
}

class SafetensorsShards : public Safetensors {
 protected:
  void SetUp() override { std::filesystem::copy(golden_path("sharded"), folder_.path()); }

  std::string index_failure(std::string_view index) {
    write(folder_.path() / "model.safetensors.index.json", index);
    return failure_of([&] { SafetensorsFolder folder(folder_.path()); });
  }

  std::string shard_failure(std::string_view shard) {
    return index_failure(R"({"weight_map":{"a":")" + std::string(shard) + "\"}}");
  }
};

TEST_F(SafetensorsShards, AreReadAsOneSet) {
  SafetensorsFolder folder(folder_.path());
  EXPECT_EQ(folder.files().size(), 2u);
  EXPECT_EQ(folder.tensors().size(), 3u);
  for (const char* name : {"a", "b", "c"}) EXPECT_EQ(values_of(folder.find_tensor(name)), grid());
  EXPECT_EQ(folder.find_tensor("d"), nullptr);
}

TEST_F(SafetensorsShards, StayValidWhenTheFolderObjectMoves) {
  SafetensorsFolder first(folder_.path());
  const FileTensor* tensor = first.find_tensor("c");
  SafetensorsFolder second = std::move(first);
  EXPECT_EQ(second.find_tensor("c"), tensor);
  EXPECT_EQ(values_of(tensor), grid());
}

TEST_F(SafetensorsShards, ASingleFileNeedsNoIndex) {
  TemporaryFolder other;
  std::filesystem::copy(golden_path("model.safetensors"), other.path());
  EXPECT_EQ(values_of(SafetensorsFolder(other.path()).find_tensor("half")).size(), 12u);
}

TEST_F(SafetensorsShards, AFolderWithoutWeightsIsNamed) {
  TemporaryFolder other;
  EXPECT_THAT(failure_of([&] { SafetensorsFolder folder(other.path()); }),
              AllOf(HasSubstr(other.path().string()), HasSubstr("neither model.safetensors")));
}

TEST_F(SafetensorsShards, RefusesNamesThatLeadElsewhere) {
  for (const char* shard : {"../model.safetensors", "/etc/model.safetensors", "", ".safetensors",
                            "sub/model.safetensors", "..\\\\model.safetensors", "model.bin",
                            "a\\u0000b.safetensors", "a\\nb.safetensors"}) {
    EXPECT_THAT(shard_failure(shard),
                AllOf(HasSubstr("index.json: shard"), HasSubstr("is needed")));
  }
  EXPECT_THAT(shard_failure(std::string(5000, 'a') + ".safetensors"), HasSubstr("is needed"));
}

TEST_F(SafetensorsShards, NamesAMissingShardOrTensor) {
  EXPECT_THAT(shard_failure("model-00003-of-00003.safetensors"),
              HasSubstr("shard 'model-00003-of-00003.safetensors' is missing"));
  EXPECT_THAT(shard_failure("model-00002-of-00002.safetensors"),
              HasSubstr("tensor 'a' is not in shard 'model-00002-of-00002.safetensors'"));
}

TEST_F(SafetensorsShards, RefusesATensorInTwoShards) {
  std::filesystem::copy(folder_.path() / "model-00002-of-00002.safetensors",
                        folder_.path() / "copy.safetensors");
  EXPECT_THAT(index_failure(R"({"weight_map":{"b":"model-00001-of-00002.safetensors",
                                "c":"model-00002-of-00002.safetensors","c2":"copy.safetensors"}})"),
              HasSubstr("tensor 'c2' is not in shard"));
  write_safetensors(
      folder_.path() / "copy.safetensors",
      {*SafetensorsFile(path_.parent_path() / "model-00002-of-00002.safetensors").find_tensor("c"),
       {"c2", DType::kF32, {0}, {}}},
      {});
  EXPECT_THAT(index_failure(R"({"weight_map":{"b":"model-00001-of-00002.safetensors",
                                "c":"model-00002-of-00002.safetensors","c2":"copy.safetensors"}})"),
              HasSubstr("tensor 'c' is in two shards"));
}

TEST_F(SafetensorsShards, RefusesABadIndex) {
  EXPECT_THAT(index_failure("{"), HasSubstr("index.json: not valid JSON"));
  EXPECT_THAT(index_failure("[]"), HasSubstr("\"weight_map\""));
  EXPECT_THAT(index_failure(R"({"weight_map":[]})"), HasSubstr("\"weight_map\""));
  EXPECT_THAT(index_failure(R"({"weight_map":{"a":1}})"),
              HasSubstr("tensor 'a': shard is no string"));
  EXPECT_THAT(index_failure(std::string(1'000'000, '[')),
              HasSubstr("nested deeper than 16 levels"));
  EXPECT_THAT(index_failure(R"({"weight_map":{}})"), HasSubstr("names no tensor"));
}

TEST_F(Safetensors, WhatIsWrittenReadsBackAlike) {
  SafetensorsFile source(golden_path("model.safetensors"));
  write_safetensors(path_, source.tensors(), {{"format", "pt"}, {"note", "\"quoted\"\n"}});
  SafetensorsFile copy(path_);
  ASSERT_EQ(copy.tensors().size(), source.tensors().size());
  for (size_t i = 0; i < copy.tensors().size(); ++i) {
    EXPECT_EQ(copy.tensors()[i].name, source.tensors()[i].name);
    EXPECT_EQ(copy.tensors()[i].shape, source.tensors()[i].shape);
    EXPECT_EQ(values_of(&copy.tensors()[i]), values_of(&source.tensors()[i]));
  }
  EXPECT_EQ(copy.metadata().at("note"), "\"quoted\"\n");
}

TEST_F(Safetensors, AFileWithoutTensorsCanBeWritten) {
  write_safetensors(path_, {}, {});
  EXPECT_TRUE(SafetensorsFile(path_).tensors().empty());
}

TEST_F(Safetensors, RefusesToWriteANameThatIsNotUtf8) {
  EXPECT_THAT(failure_of([&] {
                write_safetensors(path_, {{"\xff", DType::kF32, {0}, {}}}, {});
              }),
              HasSubstr("'\\xff' or its value is not UTF-8"));
}

TEST_F(Safetensors, AFailedWriteLeavesNothing) {
  std::filesystem::path target = folder_.path() / "none" / "model.safetensors";
  EXPECT_THROW(write_safetensors(target, {}, {}), Failure);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

}  // namespace
}  // namespace droidspeak
