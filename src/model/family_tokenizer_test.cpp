// Whether two checkpoints read a text alike, whatever files say so.
#include "model/family_tokenizer.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "support/gguf_writer.h"

namespace droidspeak {
namespace {

using testing::HasSubstr;

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
  EXPECT_EQ(describe_tokenizer_mismatch(base, gguf("same.gguf", {})), "");
  EXPECT_EQ(
      describe_tokenizer_mismatch(base, gguf("x.gguf", {.tokens = {"b", "a", "<s>", "</s>"}})),
      "vocabulary: token \"a\" is 1 where the base has 0");
  EXPECT_EQ(describe_tokenizer_mismatch(base, gguf("x.gguf", {.types = {1, 4, 3, 3}})),
            "added token \"b\" is user-defined where the base has none")
      << "4: found before anything else is split";
  EXPECT_EQ(describe_tokenizer_mismatch(base, gguf("x.gguf", {.types = {1, 1, 3, 1}})),
            "special tokens: 3 is plain where the base has it special");
  EXPECT_EQ(describe_tokenizer_mismatch(base, gguf("x.gguf", {.types = {3, 1, 3, 3}})),
            "special tokens: 0 is special where the base has it plain");
  EXPECT_EQ(describe_tokenizer_mismatch(base, gguf("x.gguf", {.merges = {"b a"}})),
            "merges: number 0 is \"b a\" where the base has \"a b\"");
}

TEST_F(Tokenizers, OfBothFormatsAreCompared) {
  const auto base = gguf("base.gguf", {});
  EXPECT_EQ(describe_tokenizer_mismatch(base, hf("same", same_as_gguf())), "");
  EXPECT_EQ(describe_tokenizer_mismatch(hf("same", same_as_gguf()), base), "");
  nlohmann::json other = same_as_gguf();
  other["added_tokens"][1].erase("special");
  EXPECT_EQ(describe_tokenizer_mismatch(base, hf("other", other)),
            "special tokens: 3 is plain where the base has it special")
      << "special where the file says so";
}

TEST_F(Tokenizers, WithoutMergesMayStillBeTheSame) {
  const auto base = gguf("base.gguf", {});
  const auto plain = gguf("plain.gguf", {.merges = {}});
  EXPECT_EQ(describe_tokenizer_mismatch(base, plain), "");
  EXPECT_EQ(describe_tokenizer_mismatch(plain, base), "");
}

TEST_F(Tokenizers, AreToldApartInEveryWayAtOnce) {
  const auto base = gguf("base.gguf", {});
  EXPECT_EQ(describe_tokenizer_mismatch(base, gguf("x.gguf", {.tokens = {"a", "c", "<s>", "</s>"},
                                                              .types = {1, 1, 1, 3},
                                                              .merges = {"a b", "b a"}})),
            "vocabulary: token \"b\" (1) is missing; special tokens: 2 is plain where the base has "
            "it special; merges: number 1 is \"b a\" where the base has none");
  EXPECT_EQ(
      describe_tokenizer_mismatch(base, gguf("x.gguf", {.tokens = {"a", "b", "<s>", "</s>", "c"}})),
      "vocabulary: token \"c\" (4) is not in the base");
}

}  // namespace
}  // namespace droidspeak
