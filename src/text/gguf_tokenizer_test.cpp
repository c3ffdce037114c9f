#include <bit>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "formats/gguf.h"
#include "text/prompt_tokens.h"
#include "text/tokenizer_test_support.h"

namespace droidspeak {
namespace {

using testing::HasSubstr;

// A GGUF file without tensors, written field by field.
class GgufText {
 public:
  void add(const std::string& key, const std::string& value) {
    put_key(key, 8);
    put_text(value);
  }

  void add(const std::string& key, uint32_t value) {
    put_key(key, 4);
    put(value, 4);
  }

  void add(const std::string& key, bool value) {
    put_key(key, 7);
    put(value ? 1 : 0, 1);
  }

  void add(const std::string& key, const std::vector<std::string>& values) {
    put_key(key, 9);
    put(8, 4);
    put(values.size(), 8);
    for (const std::string& value : values) put_text(value);
  }

  void add(const std::string& key, const std::vector<int32_t>& values) {
    put_key(key, 9);
    put(5, 4);
    put(values.size(), 8);
    for (int32_t value : values) put(static_cast<uint32_t>(value), 4);
  }

  void add(const std::string& key, const std::vector<float>& values) {
    put_key(key, 9);
    put(6, 4);
    put(values.size(), 8);
    for (float value : values) put(std::bit_cast<uint32_t>(value), 4);
  }

  std::unique_ptr<Tokenizer> load() const {
    GgufText header;
    header.put(3, 4);
    header.put(0, 8);
    header.put(count_, 8);
    TemporaryFolder folder;
    auto path = folder.path() / "x.gguf";
    write_file_atomically(path, "GGUF" + header.bytes_ + bytes_);
    return load_gguf_tokenizer(GgufFile(path));
  }

 private:
  void put(uint64_t value, size_t size) {
    for (size_t i = 0; i < size; ++i) bytes_.push_back(static_cast<char>(value >> (8 * i)));
  }

  void put_text(const std::string& text) {
    put(text.size(), 8);
    bytes_ += text;
  }

  void put_key(const std::string& key, uint32_t type) {
    put_text(key);
    put(type, 4);
    ++count_;
  }

  std::string bytes_;
  size_t count_ = 0;
};

using Strings = std::vector<std::string>;

GgufText byte_level_gguf(const Strings& tokens, const Strings& merges) {
  GgufText file;
  file.add("tokenizer.ggml.model", std::string("gpt2"));
  file.add("tokenizer.ggml.tokens", tokens);
  file.add("tokenizer.ggml.merges", merges);
  return file;
}

TEST(GgufTokenizer, DuplicateTokensAreAllowedAndTheLastIsFound) {
  auto tokenizer = byte_level_gguf({"a", "b", "ab", "a"}, {"a b"}).load();
  EXPECT_EQ(tokenizer->find("a"), 3);
  EXPECT_EQ(tokenizer->encode("aab", SpecialTokens::kParse), (std::vector<int32_t>{3, 2}));
}

TEST(GgufTokenizer, NamesKeyAndValue) {
  auto failure_with = [](auto key, auto value) {
    GgufText file = byte_level_gguf({"a", "b", "ab"}, {"a b"});
    file.add(key, value);
    return failure_in([&] { file.load(); });
  };
  EXPECT_THAT(failure_with("tokenizer.ggml.pre", std::string("odd")),
              HasSubstr("x.gguf: tokenizer.ggml.pre: 'odd' is not supported"));
  EXPECT_THAT(failure_with("tokenizer.ggml.eos_token_id", uint32_t{3}),
              HasSubstr("tokenizer.ggml.eos_token_id: value 3; there are 3 tokens"));
  EXPECT_THAT(failure_with("tokenizer.ggml.token_type", std::vector<int32_t>{1}),
              HasSubstr("token_type: has 1 elements, but there are 3 tokens"));
  EXPECT_THAT(failure_with("tokenizer.ggml.token_type", std::vector<int32_t>{1, 1, 9}),
              HasSubstr("token_type: value 9"));
  EXPECT_THAT(failure_with("tokenizer.ggml.token_type", Strings{"1", "1", "1"}),
              HasSubstr("token_type: not an array"));
  EXPECT_THAT(failure_with("tokenizer.ggml.bos_token_id", std::string("1")),
              HasSubstr("bos_token_id"));
  EXPECT_THAT(failure_in([] { byte_level_gguf({"a"}, {"ab"}).load(); }),
              HasSubstr("merge 0 is 'ab'"));
  EXPECT_THAT(failure_in([] { byte_level_gguf({"a"}, {"a b"}).load(); }),
              HasSubstr("merge 0 is 'a b'"));
  EXPECT_THAT(failure_in([] { byte_level_gguf({}, {}).load(); }), HasSubstr("0 tokens"));
  EXPECT_THAT(failure_in([] { GgufText().load(); }), HasSubstr("tokenizer.ggml.model"));
}

TEST(GgufTokenizer, RefusesKeysOfAnotherMeaningByName) {
  auto failure_with = [](const std::string& key, auto value) {
    GgufText file = byte_level_gguf({"a", "b", "ab"}, {"a b"});
    file.add(key, value);
    return failure_in([&] { file.load(); });
  };
  for (const char* name :
       {"add_cls_token", "add_mask_token", "add_padding_token", "add_unknown_token",
        "add_seperator_token", "add_separator_token", "remove_extra_whitespaces",
        "normalizer.lowercase", "normalizer.strip_accents"}) {
    const std::string key = std::string("tokenizer.ggml.") + name;
    EXPECT_EQ(failure_with(key, false), "no failure") << key;
    EXPECT_THAT(failure_with(key, true), HasSubstr(key + ": is not supported")) << key;
  }
  for (const char* name : {"precompiled_charsmap", "suppress_tokens"}) {
    const std::string key = std::string("tokenizer.ggml.") + name;
    EXPECT_EQ(failure_with(key, std::vector<int32_t>{}), "no failure") << key;
    EXPECT_THAT(failure_with(key, std::vector<int32_t>{1}), HasSubstr(key + ": is not supported"));
  }
  EXPECT_THAT(failure_with("tokenizer.ggml.escape_whitespaces", false),
              HasSubstr("x.gguf: tokenizer.ggml.escape_whitespaces: is not supported"));
}

// As embedding models have it.
TEST(GgufTokenizer, MayWantEosBehindPrompts) {
  GgufText file = byte_level_gguf({"a", "b", "ab"}, {"a b"});
  file.add("tokenizer.ggml.add_eos_token", true);
  EXPECT_THAT(failure_in([&] { file.load(); }),
              HasSubstr("x.gguf: tokenizer.ggml.add_eos_token: is true, but there is no EOS"));
  file.add("tokenizer.ggml.eos_token_id", uint32_t{1});
  auto tokenizer = file.load();
  EXPECT_EQ(tokenizer->end_of_prompt_id, 1);
  EXPECT_EQ(as_prompt(*tokenizer, {0, 2}), (std::vector<int32_t>{0, 2, 1}));
  EXPECT_EQ(as_prompt(*tokenizer, {0, 1}), (std::vector<int32_t>{0, 1})) << "it is there";
  EXPECT_EQ(as_prompt(*tokenizer, {}), (std::vector<int32_t>{1}));
  EXPECT_EQ(byte_level_gguf({"a", "b", "ab"}, {"a b"}).load()->end_of_prompt_id, -1);
}

// What converters write that changes no ids of a text.
TEST(GgufTokenizer, TakesTheOtherKeysOfRealFiles) {
  GgufText file = byte_level_gguf({"a", "b", "ab"}, {"a b"});
  for (const char* name :
       {"unknown_token_id", "seperator_token_id", "padding_token_id", "cls_token_id",
        "mask_token_id", "fim_pre_token_id", "fim_suf_token_id", "fim_mid_token_id",
        "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id", "prefix_token_id",
        "suffix_token_id", "middle_token_id", "eot_token_id", "eom_token_id", "token_type_count"})
    file.add(std::string("tokenizer.ggml.") + name, uint32_t{1});
  for (const char* name : {"padding_token_ids", "eos_token_ids"})
    file.add(std::string("tokenizer.ggml.") + name, std::vector<int32_t>{1});
  file.add("tokenizer.ggml.added_tokens", Strings{"ab"});
  file.add("tokenizer.ggml.add_sep_token", true);
  file.add("tokenizer.ggml.add_space_prefix", true);
  file.add("tokenizer.ggml.pre", std::string("gpt-2"));
  file.add("tokenizer.huggingface.json", std::string("{}"));
  file.add("tokenizer.rwkv.world", std::string(""));
  file.add("tokenizer.chat_template", std::string("T"));
  file.add("tokenizer.chat_templates", Strings{"tool_use"});
  file.add("tokenizer.chat_template.tool_use", std::string("U"));
  EXPECT_EQ(file.load()->chat_template, "T");
}

TEST(GgufTokenizer, HasEveryTokenThatEndsAnAnswer) {
  GgufText file = byte_level_gguf({"a", "b", "ab"}, {"a b"});
  file.add("tokenizer.ggml.eos_token_id", uint32_t{1});
  file.add("tokenizer.ggml.eos_token_ids", std::vector<int32_t>{1, 2});
  EXPECT_EQ(file.load()->end_of_turn_ids, (std::vector<int32_t>{1, 2}));
  GgufText other = byte_level_gguf({"a"}, {});
  other.add("tokenizer.ggml.eos_token_ids", std::vector<int32_t>{1});
  EXPECT_THAT(failure_in([&] { other.load(); }), HasSubstr("eos_token_ids: value 1"));
}

TEST(GgufTokenizer, RefusesMarkedTokensOfManyBytes) {
  GgufText file = byte_level_gguf({"a", std::string(2000, 'b')}, {});
  file.add("tokenizer.ggml.token_type", std::vector<int32_t>{1, 4});
  EXPECT_THAT(failure_in([&] { file.load(); }),
              HasSubstr("tokenizer.ggml.token_type: token 1 has 2000 bytes; at most 1024"));
}

TEST(GgufTokenizer, RefusesBadScores) {
  auto failure_with = [](const std::vector<float>& scores) {
    GgufText file;
    file.add("tokenizer.ggml.model", std::string("llama"));
    file.add("tokenizer.ggml.tokens", Strings{"a", "b"});
    if (!scores.empty()) file.add("tokenizer.ggml.scores", scores);
    return failure_in([&] { file.load(); });
  };
  EXPECT_THAT(failure_with({}), HasSubstr("tokenizer.ggml.scores: missing"));
  EXPECT_THAT(failure_with({1}), HasSubstr("tokenizer.ggml.scores: has 1 elements"));
  EXPECT_THAT(failure_with({1, NAN}), HasSubstr("score of token 1 is nan"));
  EXPECT_EQ(failure_with({1, 2}), "no failure");
}

}  // namespace
}  // namespace droidspeak
