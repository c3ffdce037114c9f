// Whether two checkpoints read a text alike, whatever files say so.
#include "model/family_tokenizer.h"

#include <fstream>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "model/adapter_opener.h"
#include "support/gguf_writer.h"

namespace droidspeak {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Tokenizers : public testing::Test {
 protected:
  struct Definition {
    std::vector<std::string> tokens = {"a", "b", "<s>", "</s>"};
    std::vector<int64_t> types = {1, 1, 3, 3};
    std::vector<std::string> merges = {"a b"};
  };

  std::filesystem::path gguf(const char* name, const Definition& definition) const {
    GgufEntries entries = {{"tokenizer.ggml.tokens", definition.tokens}};
    if (!definition.types.empty())
      entries.emplace_back("tokenizer.ggml.token_type", definition.types);
    if (!definition.merges.empty())
      entries.emplace_back("tokenizer.ggml.merges", definition.merges);
    write_gguf(folder_.path() / name, entries, {});
    return folder_.path() / name;
  }

  std::filesystem::path hf(const char* name, const nlohmann::json& json) const {
    std::filesystem::create_directory(folder_.path() / name);
    std::ofstream(folder_.path() / name / "tokenizer.json") << json;
    return folder_.path() / name;
  }

  static nlohmann::json same_as_gguf() {
    return {{"model", {{"vocab", {{"a", 0}, {"b", 1}}}, {"merges", {"a b"}}}},
            {"added_tokens",
             {{{"id", 2}, {"content", "<s>"}, {"special", true}},
              {{"id", 3}, {"content", "</s>"}, {"special", true}}}}};
  }

  TemporaryFolder folder_;
};

TEST_F(Tokenizers, OfGgufFilesAreCompared) {
  const auto base = gguf("base.gguf", {});
  EXPECT_EQ(BaseTokenizer(base).mismatch_of(gguf("same.gguf", {})), "");
  EXPECT_EQ(BaseTokenizer(base).mismatch_of(gguf("x.gguf", {.tokens = {"b", "a", "<s>", "</s>"}})),
            "vocabulary: token \"a\" is 1 where the base has 0");
  EXPECT_EQ(BaseTokenizer(base).mismatch_of(gguf("x.gguf", {.types = {1, 4, 3, 3}})),
            "added token \"b\" is user-defined where the base has none")
      << "4: found before anything else is split";
  EXPECT_EQ(BaseTokenizer(base).mismatch_of(gguf("x.gguf", {.types = {1, 1, 3, 1}})),
            "special tokens: 3 is plain where the base has it special");
  EXPECT_EQ(BaseTokenizer(base).mismatch_of(gguf("x.gguf", {.types = {3, 1, 3, 3}})),
            "special tokens: 0 is special where the base has it plain");
  EXPECT_EQ(BaseTokenizer(base).mismatch_of(gguf("x.gguf", {.merges = {"b a"}})),
            "merges: number 0 is \"b a\" where the base has \"a b\"");
}

TEST_F(Tokenizers, OfBothFormatsAreCompared) {
  const auto base = gguf("base.gguf", {});
  EXPECT_EQ(BaseTokenizer(base).mismatch_of(hf("same", same_as_gguf())), "");
  EXPECT_EQ(BaseTokenizer(hf("same", same_as_gguf())).mismatch_of(base), "");
  nlohmann::json other = same_as_gguf();
  other["added_tokens"][1].erase("special");
  EXPECT_EQ(BaseTokenizer(base).mismatch_of(hf("other", other)),
            "special tokens: 3 is plain where the base has it special")
      << "special where the file says so";
}

TEST_F(Tokenizers, WithoutMergesMayStillBeTheSame) {
  const auto base = gguf("base.gguf", {});
  const auto plain = gguf("plain.gguf", {.merges = {}});
  EXPECT_EQ(BaseTokenizer(base).mismatch_of(plain), "");
  EXPECT_EQ(BaseTokenizer(plain).mismatch_of(base), "");
}

TEST_F(Tokenizers, AreToldApartInEveryWayAtOnce) {
  const auto base = gguf("base.gguf", {});
  EXPECT_EQ(BaseTokenizer(base).mismatch_of(gguf("x.gguf", {.tokens = {"a", "c", "<s>", "</s>"},
                                                            .types = {1, 1, 1, 3},
                                                            .merges = {"a b", "b a"}})),
            "vocabulary: token \"b\" (1) is missing; special tokens: 2 is plain where the base has "
            "it special; merges: number 1 is \"b a\" where the base has none");
  EXPECT_EQ(
      BaseTokenizer(base).mismatch_of(gguf("x.gguf", {.tokens = {"a", "b", "<s>", "</s>", "c"}})),
      "vocabulary: token \"c\" (4) is not in the base");
}

// What converters add to reach the number of the model's embeddings is no part of the vocabulary.
TEST_F(Tokenizers, MayHaveRowsThatNoTextHas) {
  const auto padded = gguf("padded.gguf", {.tokens = {"a", "b", "<s>", "</s>", "[PAD4]", "c"},
                                           .types = {1, 1, 3, 3, 5, 5}});
  const auto json = hf("json", same_as_gguf());
  EXPECT_EQ(BaseTokenizer(padded).mismatch_of(json), "");
  EXPECT_EQ(BaseTokenizer(json).mismatch_of(padded), "");
  EXPECT_EQ(BaseTokenizer(padded).mismatch_of(gguf("base.gguf", {})), "");
  nlohmann::json more = same_as_gguf();
  more["added_tokens"].push_back({{"id", 5}, {"content", "c"}});
  EXPECT_EQ(BaseTokenizer(padded).mismatch_of(hf("more", more)), "")
      << "a token that the other one uses";
  more["added_tokens"].back()["id"] = 4;
  const auto moved = hf("moved", more);
  EXPECT_EQ(BaseTokenizer(padded).mismatch_of(moved),
            "vocabulary: token \"c\" is 4 where the base has 5");
  EXPECT_EQ(BaseTokenizer(moved).mismatch_of(padded),
            "vocabulary: token \"c\" is 5 where the base has 4");
}

// They are trained on texts that the base's tokenizer reads alike, whatever else a trainer wrote.
TEST_F(Tokenizers, OfAdaptersMayHaveMoreTokens) {
  BaseTokenizer base(hf("base", same_as_gguf()));
  auto compare = [&](const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json json = same_as_gguf();
    change(json);
    return base.compare(AdapterOpener(hf("adapter", json)));
  };
  const AdapterTokenizer same = compare([](nlohmann::json&) {});
  EXPECT_EQ(same.mismatch, "");
  EXPECT_THAT(same.differences, IsEmpty());
  const AdapterTokenizer padded = compare([](nlohmann::json& json) {
    json["added_tokens"].push_back({{"id", 4}, {"content", "<|PAD_TOKEN|>"}, {"special", true}});
  });
  EXPECT_EQ(padded.mismatch, "");
  EXPECT_THAT(padded.differences,
              ElementsAre(AllOf(HasSubstr("its tokenizer differs: vocabulary: token "
                                          "\"<|PAD_TOKEN|>\" (4) is not in the base"),
                                HasSubstr("the base's is used"))));
  const AdapterTokenizer flagged = compare([](nlohmann::json& json) {
    json["added_tokens"][0]["special"] = false;
    json["normalizer"] = {{"type", "NFC"}};
    json["model"]["vocab"].erase("b");
  });
  EXPECT_EQ(flagged.mismatch, "");
  EXPECT_THAT(flagged.differences,
              ElementsAre(AllOf(HasSubstr("token \"b\" (1) is missing"),
                                HasSubstr("special tokens: 2"), HasSubstr("normalizer is"))));
  const AdapterTokenizer moved = compare([](nlohmann::json& json) {
    json["added_tokens"].push_back({{"id", 4}, {"content", "[PAD]"}});
    json["model"]["vocab"] = {{"a", 1}, {"b", 0}};
  });
  EXPECT_EQ(moved.mismatch, "vocabulary: token \"a\" is 1 where the base has 0");
}

TEST_F(Tokenizers, OfAdaptersAreOnlyReportedWhereTheyCannotBeRead) {
  BaseTokenizer base(hf("base", same_as_gguf()));
  const AdapterTokenizer list = base.compare(AdapterOpener(hf("list", nlohmann::json::array())));
  EXPECT_EQ(list.mismatch, "");
  EXPECT_THAT(list.differences, ElementsAre(AllOf(HasSubstr("could not be compared"),
                                                  HasSubstr("list/tokenizer.json"))));
  const AdapterTokenizer none = base.compare(AdapterOpener(folder_.path()));
  EXPECT_THAT(none.differences, IsEmpty());
}

// What lies outside of the root is not read, whatever a link in the folder says.
TEST_F(Tokenizers, OfAdaptersAreReadBelowTheirRoot) {
  BaseTokenizer base(hf("base", same_as_gguf()));
  nlohmann::json moved = same_as_gguf();
  moved["model"]["vocab"] = {{"a", 1}, {"b", 0}};
  const auto outside = hf("outside", moved);
  const auto root = folder_.path() / "root";
  std::filesystem::create_directories(root / "linked");
  std::filesystem::create_symlink(outside / "tokenizer.json", root / "linked" / "tokenizer.json");
  EXPECT_EQ(base.compare(AdapterOpener(AdapterPath(root, "linked"))).mismatch, "");
  EXPECT_NE(base.compare(AdapterOpener(root / "linked")).mismatch, "");
  std::filesystem::create_directory(root / "own");
  std::filesystem::copy_file(outside / "tokenizer.json", root / "own" / "tokenizer.json");
  EXPECT_NE(base.compare(AdapterOpener(AdapterPath(root, "own"))).mismatch, "");
  try {
    base.require_fit(AdapterOpener(AdapterPath(root, "own")));
    ADD_FAILURE() << "is refused";
  } catch (const Failure& failure) {
    EXPECT_STREQ(failure.what(),
                 "own: its tokenizer differs: vocabulary: token \"a\" is 1 where the base has 0");
  }
}

// Many adapters, one base.
TEST_F(Tokenizers, OfTheBaseAreReadOnce) {
  const auto folder = hf("base", same_as_gguf());
  BaseTokenizer base(folder);
  EXPECT_EQ(base.mismatch_of(hf("twin", same_as_gguf())), "");
  std::filesystem::remove(folder / "tokenizer.json");
  nlohmann::json moved = same_as_gguf();
  moved["model"]["vocab"] = {{"a", 1}, {"b", 0}};
  EXPECT_NE(base.compare(AdapterOpener(hf("adapter", moved))).mismatch, "");
}

}  // namespace
}  // namespace droidspeak
