// What of two tokenizers makes them read texts differently, and what is only another spelling.
#include <cmath>
#include <cstring>
#include <functional>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "model/family_tokenizer.h"
#include "support/gguf_writer.h"

namespace droidspeak {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::json;

// As Llama 2 has it: characters, a normalizer, bytes for what is not in the vocabulary.
Json sentencepiece() {
  return Json::parse(R"({
    "added_tokens": [
      {"id": 0, "content": "<unk>", "special": true, "normalized": false},
      {"id": 4, "content": "<tool>", "special": false, "lstrip": false, "rstrip": false}],
    "normalizer": {"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "_"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "_"}]},
    "pre_tokenizer": null,
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
              "vocab": {"<unk>": 0, "a": 1, "b": 2, "ab": 3}, "merges": ["a b"]}})");
}

// As Qwen 2 has it.
Json byte_level() {
  return Json::parse(R"({
    "added_tokens": [{"id": 3, "content": "<|end|>", "special": true}],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "\\p{N}"}, "behavior": "Isolated", "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
       "use_regex": false}]},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})");
}

class TokenizerMismatch : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const Json& tokenizer) const {
    const std::filesystem::path folder = folder_.path() / name;
    std::filesystem::create_directories(folder);
    write_file_atomically(folder / "tokenizer.json", tokenizer.dump());
    return folder;
  }

  // Of the same tokenizer after a change.
  std::string difference(const Json& base, const std::function<void(Json&)>& change) const {
    Json variant = base;
    change(variant);
    return BaseTokenizer(write("base", base)).mismatch_of(write("variant", variant));
  }

  std::string difference(const Json& base, const char* place, const Json& value) const {
    return difference(base, [&](Json& json) { json[Json::json_pointer(place)] = value; });
  }

  std::filesystem::path write_file(const std::string& name, const GgufEntries& entries) const {
    write_gguf(folder_.path() / name, entries, {});
    return folder_.path() / name;
  }

  std::string gguf_difference(const GgufEntries& base, size_t entry, const GgufValue& value) const {
    GgufEntries variant = base;
    variant[entry].second = value;
    return BaseTokenizer(write_file("base.gguf", base))
        .mismatch_of(write_file("variant.gguf", variant));
  }

  TemporaryFolder folder_;
};

TEST_F(TokenizerMismatch, DifferWhereTextsAreNormalizedOtherwise) {
  EXPECT_EQ(difference(sentencepiece(), [](Json&) {}), "");
  EXPECT_THAT(difference(byte_level(), "/normalizer", nullptr),
              HasSubstr(R"(normalizer is [] where the base has [{"type":"NFC"}])"));
  EXPECT_THAT(difference(byte_level(), [](Json& json) { json.erase("normalizer"); }),
              HasSubstr("normalizer is []"));
  EXPECT_THAT(difference(byte_level(), "/normalizer/type", "NFKC"),
              HasSubstr(R"([{"type":"NFKC"}] where the base has [{"type":"NFC"}])"));
  EXPECT_THAT(difference(sentencepiece(), "/normalizer/normalizers/0/prepend", "__"),
              HasSubstr("normalizer is"));
  EXPECT_THAT(
      difference(sentencepiece(), "/normalizer/normalizers/1/pattern", Json{{"Regex", " "}}),
      HasSubstr("normalizer is"));
  auto turn = [](Json& json) {
    Json& steps = json["normalizer"]["normalizers"];
    std::swap(steps[0], steps[1]);
  };
  EXPECT_THAT(difference(sentencepiece(), turn), HasSubstr("normalizer is"));
  EXPECT_THAT(difference(sentencepiece(), "/normalizer", Json{{"type", "Lowercase"}}),
              HasSubstr("Lowercase"))
      << "types that are not supported, too";
}

TEST_F(TokenizerMismatch, DifferWhereTextsAreSplitOtherwise) {
  const std::pair<const char*, Json> changes[] = {
      {"/pre_tokenizer", nullptr},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\p{N}{1,3}"},
      {"/pre_tokenizer/pretokenizers/0/behavior", "Removed"},
      {"/pre_tokenizer/pretokenizers/0/invert", true},
      {"/pre_tokenizer/pretokenizers/1/add_prefix_space", true},
      {"/pre_tokenizer/pretokenizers/1/use_regex", true},
      {"/pre_tokenizer/pretokenizers/1/use_regex", nullptr},
      {"/pre_tokenizer/pretokenizers/1", Json{{"type", "Whitespace"}}}};
  for (const auto& [place, value] : changes)
    EXPECT_THAT(difference(byte_level(), place, value), HasSubstr("pre_tokenizer is")) << place;
}

// A pattern of some hundred characters is shown where it differs.
TEST_F(TokenizerMismatch, SayWhereLongRulesDiffer) {
  const char* place = "/pre_tokenizer/pretokenizers/0/pattern/Regex";
  Json base = byte_level();
  base[Json::json_pointer(place)] = std::string(3000, 'x') + "yes" + std::string(3000, 'z');
  const std::string text =
      difference(base, place, std::string(3000, 'x') + "no" + std::string(3000, 'z'));
  EXPECT_THAT(text, AllOf(HasSubstr("xxno"), HasSubstr("xxyes")));
  EXPECT_LT(text.size(), 600u);
}

TEST_F(TokenizerMismatch, DifferWhereAddedTokensAreFoundOtherwise) {
  EXPECT_THAT(difference(sentencepiece(), "/added_tokens/1/lstrip", true),
              AllOf(HasSubstr("added token \"<tool>\" is"), HasSubstr("\"lstrip\":true"),
                    HasSubstr("\"lstrip\":false")));
  for (const char* flag : {"rstrip", "single_word"}) {
    EXPECT_THAT(difference(sentencepiece(), (std::string("/added_tokens/0/") + flag).c_str(), true),
                HasSubstr("added token \"<unk>\" is"))
        << flag;
  }
  EXPECT_THAT(difference(sentencepiece(), "/added_tokens/0/normalized", true),
              HasSubstr("added token \"<unk>\" is"));
  EXPECT_THAT(difference(sentencepiece(), [](Json& json) { json["added_tokens"].erase(0); }),
              HasSubstr("added token \"<unk>\" is none"));
  Json plain = sentencepiece();
  plain["model"]["vocab"]["<tool>"] = 4;
  EXPECT_THAT(difference(plain, [](Json& json) { json["added_tokens"].erase(1); }),
              HasSubstr("added token \"<tool>\" is none where the base has {"))
      << "in the vocabulary it is not looked for in a text";
}

TEST_F(TokenizerMismatch, DifferWhereTheModelWorksOtherwise) {
  const std::pair<const char*, Json> changes[] = {
      {"byte_fallback", false},       {"byte_fallback", nullptr},
      {"ignore_merges", true},        {"fuse_unk", false},
      {"unk_token", nullptr},         {"dropout", 0.1},
      {"end_of_word_suffix", "</w>"}, {"continuing_subword_prefix", "##"},
      {"type", "WordPiece"}};
  for (const auto& [field, value] : changes) {
    EXPECT_THAT(difference(sentencepiece(), (std::string("/model/") + field).c_str(), value),
                HasSubstr(std::string("model.") + field + " is"))
        << value;
  }
  EXPECT_THAT(difference(sentencepiece(), "/model/merges", Json::array()),
              HasSubstr("merges: number 0 is none where the base has \"a b\""));
}

// Files that are saved anew by another release of the library.
TEST_F(TokenizerMismatch, AreTheSameInOtherSpellings) {
  const std::vector<std::function<void(Json&)>> spellings = {
      [](Json& json) { json["pre_tokenizer"]["pretokenizers"][1].erase("trim_offsets"); },
      [](Json& json) { json["pre_tokenizer"]["pretokenizers"][0].erase("invert"); },
      [](Json& json) {
        json["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}};
      },
      [](Json& json) {
        json["model"]["merges"] = Json::array({{"a", "b"}});
      },
      [](Json& json) { json["model"]["byte_fallback"] = false; },
      [](Json& json) { json["model"]["ignore_merges"] = nullptr; },
      [](Json& json) { json["model"]["dropout"] = 0.0; },
      [](Json& json) { json["model"]["end_of_word_suffix"] = ""; },
      [](Json& json) { json["model"]["unk_token"] = "<|end|>"; },  // no byte is unknown
      [](Json& json) { json["added_tokens"][0]["lstrip"] = false; },
      [](Json& json) { json["added_tokens"][0]["normalized"] = nullptr; },
      [](Json& json) {
        json["decoder"] = {{"type", "ByteLevel"}};
      },
      [](Json& json) {
        json["post_processor"] = {{"type", "ByteLevel"}};
      },
      [](Json& json) {
        json["padding"] = {{"pad_id", 3}};
      },
  };
  for (size_t i = 0; i < spellings.size(); ++i)
    EXPECT_EQ(difference(byte_level(), spellings[i]), "") << i;
  Json old = byte_level();
  old["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "_"}, {"add_prefix_space", true}};
  auto renew = [](Json& json) {
    json["pre_tokenizer"] = {
        {"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "always"}, {"split", true}};
  };
  EXPECT_EQ(difference(old, renew), "");
  old["pre_tokenizer"]["add_prefix_space"] = false;
  EXPECT_THAT(difference(old, renew), HasSubstr("pre_tokenizer is"));
}

TEST_F(TokenizerMismatch, NeedNoFlagOfNormalizedTextsWithoutANormalizer) {
  Json plain = byte_level();
  plain["normalizer"] = nullptr;
  EXPECT_EQ(difference(plain, "/added_tokens/0/normalized", true), "");
  EXPECT_THAT(difference(byte_level(), "/added_tokens/0/normalized", true),
              HasSubstr("added token \"<|end|>\""));
}

TEST_F(TokenizerMismatch, CountTokensThatOnlyTheConfigurationAdds) {
  const std::filesystem::path base = write("base", byte_level());
  const std::filesystem::path variant = write("variant", byte_level());
  auto configure = [&](const std::string& text) {
    write_file_atomically(variant / "tokenizer_config.json", text);
    return BaseTokenizer(base).mismatch_of(variant);
  };
  EXPECT_EQ(configure(R"({"added_tokens_decoder": null})"), "");
  EXPECT_EQ(configure(R"({"added_tokens_decoder": {"3": {"content": "<|end|>", "rstrip": true}}})"),
            "")
      << "tokenizer.json has the last word";
  EXPECT_THAT(configure(R"({"added_tokens_decoder": {"4": {"content": "<|new|>"}}})"),
              AllOf(HasSubstr("added token \"<|new|>\" is"), HasSubstr("\"id\":\"4\""),
                    HasSubstr("where the base has none")));
  EXPECT_THAT(configure(R"({"added_tokens_decoder": {"0": {"content": "a"}}})"),
              HasSubstr("added token \"a\" is {"));
  for (const char* text :
       {"{", "[]", "7", R"({"added_tokens_decoder": 7})", R"({"added_tokens_decoder": [7]})",
        R"({"added_tokens_decoder": {"4": 7}})", R"({"added_tokens_decoder": {"4": {}}})",
        R"({"added_tokens_decoder": {"4": {"content": "new", "special": 1}}})"}) {
    std::string said;
    try {
      said = configure(text);
    } catch (const Failure& failure) {
      said = failure.what();
    }
    EXPECT_THAT(said, HasSubstr("variant/tokenizer_config.json")) << text;
  }
}

// They are refused by name, or compared as they are; what reads a text refuses them later.
TEST_F(TokenizerMismatch, OfWrongTypesAreNoSurprise) {
  const Json values[] = {nullptr,
                         7,
                         1e300,
                         true,
                         "NFC",
                         Json::array(),
                         Json::object(),
                         {1, 2},
                         Json{{"type", 7}},
                         Json{{"type", "Sequence"}, {"normalizers", 7}}};
  for (const char* place :
       {"/normalizer", "/pre_tokenizer", "/added_tokens", "/added_tokens/0", "/model",
        "/model/merges", "/model/byte_fallback", "/model/vocab", "/normalizer/type",
        "/pre_tokenizer/pretokenizers", "/pre_tokenizer/pretokenizers/1/use_regex"}) {
    for (const Json& value : values) {
      std::string said;
      try {
        said = difference(byte_level(), place, value);
      } catch (const Failure& failure) {
        said = failure.what();
        EXPECT_THAT(said, HasSubstr("variant/tokenizer.json")) << place << ' ' << value;
      }
      const bool is_same = byte_level()[Json::json_pointer(place)] == value;
      if (value.is_object() || value.is_number()) {
        EXPECT_EQ(said.empty(), is_same) << place << ' ' << value;
      }
    }
  }
}

GgufEntries gguf_bytes() {
  return {{"tokenizer.ggml.model", std::string("gpt2")},
          {"tokenizer.ggml.pre", std::string("qwen2")},
          {"tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "ab", "<|end|>"}},
          {"tokenizer.ggml.token_type", std::vector<int64_t>{1, 1, 1, 3}},
          {"tokenizer.ggml.merges", std::vector<std::string>{"a b"}}};
}

GgufEntries gguf_pieces() {
  return {{"tokenizer.ggml.model", std::string("llama")},
          {"tokenizer.ggml.add_space_prefix", true},
          {"tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "a", "b", "ab", "<tool>"}},
          {"tokenizer.ggml.token_type", std::vector<int64_t>{3, 1, 1, 1, 4}},
          {"tokenizer.ggml.scores", std::vector<double>{0, -1, -2, -3, 0}}};
}

TEST_F(TokenizerMismatch, InGgufDifferByTheirOwnWords) {
  const GgufEntries bytes = gguf_bytes();
  EXPECT_EQ(gguf_difference(bytes, 1, std::string("qwen2")), "");
  EXPECT_EQ(gguf_difference(bytes, 1, std::string("smollm")),
            R"(tokenizer.ggml.pre is "smollm" where the base has "qwen2")");
  EXPECT_THAT(gguf_difference(bytes, 3, std::vector<int64_t>{4, 1, 1, 3}),
              HasSubstr("added token \"a\" is user-defined where the base has none"));
  const GgufEntries pieces = gguf_pieces();
  EXPECT_EQ(gguf_difference(pieces, 1, true), "");
  EXPECT_THAT(gguf_difference(pieces, 1, false),
              HasSubstr("tokenizer.ggml.add_space_prefix is false where the base has true"));
  EXPECT_THAT(gguf_difference(pieces, 4, std::vector<double>{0, -1, -2, -4, 0}),
              HasSubstr("scores: that of token 3 is -4 where the base has -3"));
  EXPECT_THAT(gguf_difference(pieces, 4, std::vector<double>{0, std::nan(""), -2, -3, 0}),
              HasSubstr("scores: that of token 1 is nan where the base has -1"));
  EXPECT_THAT(gguf_difference(pieces, 0, std::string("gpt2")),
              HasSubstr("tokenizer.ggml.model is \"gpt2\" where the base has \"llama\""));
}

// Converters name what they know it from: llama.cpp splits texts alike for all of these.
TEST_F(TokenizerMismatch, InGgufAreTheSameByEveryNameOfAPreTokenizer) {
  const std::pair<const char*, const char*> names[] = {
      {"qwen2", "deepseek-r1-qwen"}, {"llama-bpe", "llama3"}, {"llama3", "llama-v3"},
      {"smollm", "starcoder"},       {"refact", "command-r"}, {"default", "gpt-2"}};
  GgufEntries bytes = gguf_bytes();
  for (const auto& [name, alias] : names) {
    bytes[1].second = std::string(name);
    EXPECT_EQ(gguf_difference(bytes, 1, std::string(alias)), "") << name << ' ' << alias;
  }
  bytes[1].second = std::string("llama-bpe");
  EXPECT_NE(gguf_difference(bytes, 1, std::string("dbrx")), "") << "they merge differently";
  EXPECT_NE(gguf_difference(bytes, 1, std::string("unheard-of")), "");
  bytes[1].second = std::string("unheard-of");
  EXPECT_EQ(gguf_difference(bytes, 1, std::string("unheard-of")), "");
}

// The part of a protocol buffer that a SentencePiece model is made of.
std::string field(int number, const std::string& bytes) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}

std::string field(int number, int value) {
  std::string tag(1, static_cast<char>(number << 3 & 0x7f));
  if (number > 15) tag = {static_cast<char>(tag[0] | 0x80), static_cast<char>(number >> 4)};
  return tag + static_cast<char>(value);
}

std::string piece(const std::string& text, float score, int type = 1) {
  std::string bits(sizeof score, '\0');
  std::memcpy(bits.data(), &score, sizeof score);
  return field(1, field(1, text) + static_cast<char>(2 << 3 | 5) + bits + field(3, type));
}

// Of sentencepiece().
struct Pieces {
  float score = -3;
  int type_of_tool = 4;
  int byte_fallback = 1;
  int add_dummy_prefix = 1;
  int remove_extra_whitespaces = 0;
  std::string character_map = {};

  std::string bytes() const {
    return piece("<unk>", 0, 2) + piece("a", -1) + piece("b", -2) + piece("ab", score) +
           piece("<tool>", 0, type_of_tool) + field(2, field(3, 2) + field(35, byte_fallback)) +
           field(3, field(2, character_map) + field(3, add_dummy_prefix) +
                        field(4, remove_extra_whitespaces));
  }
};

TEST_F(TokenizerMismatch, OfSentencePieceModelsAreFound) {
  auto write_pieces = [&](const std::string& name, const Pieces& pieces, const char* config = "") {
    const std::filesystem::path folder = folder_.path() / name;
    std::filesystem::create_directories(folder);
    write_file_atomically(folder / "tokenizer.model", pieces.bytes());
    if (*config != '\0') write_file_atomically(folder / "tokenizer_config.json", config);
    return folder;
  };
  const std::filesystem::path base = write_pieces("base", {});
  auto difference = [&](const Pieces& pieces) {
    return BaseTokenizer(base).mismatch_of(write_pieces("variant", pieces));
  };
  EXPECT_EQ(difference({}), "");
  EXPECT_EQ(difference({.score = -4}), "scores: that of token 3 is -4 where the base has -3");
  EXPECT_THAT(difference({.type_of_tool = 1}), HasSubstr("added token \"<tool>\""));
  EXPECT_THAT(difference({.type_of_tool = 3}), HasSubstr("special tokens: 4 is special"));
  EXPECT_EQ(difference({.byte_fallback = 0}),
            "trainer_spec.byte_fallback is false where the base has true");
  EXPECT_EQ(difference({.add_dummy_prefix = 0}),
            "normalizer_spec.add_dummy_prefix is false where the base has true");
  EXPECT_EQ(difference({.remove_extra_whitespaces = 1}),
            "normalizer_spec.remove_extra_whitespaces is true where the base has false");
  EXPECT_THAT(difference({.character_map = "x"}), HasSubstr("precompiled_charsmap"));

  const char* known = R"({"added_tokens_decoder": {"0": {"content": "<unk>", "special": true}}})";
  EXPECT_EQ(BaseTokenizer(base).mismatch_of(write_pieces("known", {}, known)), "");
  const char* pad = R"({"added_tokens_decoder": {"5": {"content": "<pad>", "special": true}}})";
  EXPECT_THAT(BaseTokenizer(base).mismatch_of(write_pieces("more", {}, pad)),
              HasSubstr("vocabulary: token \"<pad>\" (5) is not in the base"));

  const std::filesystem::path json = write("json", sentencepiece());
  EXPECT_EQ(BaseTokenizer(base).mismatch_of(json), "") << "in another format";
  EXPECT_EQ(BaseTokenizer(json).mismatch_of(base), "");
  Json other = sentencepiece();
  other["model"]["vocab"] = {{"<unk>", 0}, {"b", 1}, {"a", 2}, {"ab", 3}};
  EXPECT_THAT(BaseTokenizer(base).mismatch_of(write("other", other)),
              HasSubstr("vocabulary: token \"a\" is 2 where the base has 1"));
}

// Of a converted Llama 2: the token for what is unknown is special in a tokenizer.json.
TEST_F(TokenizerMismatch, InGgufTheUnknownTokenIsSpecial) {
  GgufEntries pieces = gguf_pieces();
  pieces[3].second = std::vector<int64_t>{2, 1, 1, 1, 4};
  const std::filesystem::path json = write("json", sentencepiece());
  EXPECT_THAT(BaseTokenizer(json).mismatch_of(write_file("plain.gguf", pieces)),
              HasSubstr("special tokens: 0 is plain"));
  pieces.emplace_back("tokenizer.ggml.unknown_token_id", int64_t{0});
  EXPECT_EQ(BaseTokenizer(json).mismatch_of(write_file("unknown.gguf", pieces)), "");
}

// Nothing in them says the same in the same words, but for vocabulary, special tokens and merges.
TEST_F(TokenizerMismatch, InTwoFormatsAreComparedByWhatBothSay) {
  const std::filesystem::path json = write("json", byte_level());
  const std::filesystem::path gguf = write_file("model.gguf", gguf_bytes());
  EXPECT_EQ(BaseTokenizer(json).mismatch_of(gguf), "");
  EXPECT_EQ(BaseTokenizer(gguf).mismatch_of(json), "");
  const std::filesystem::path pieces = write_file("pieces.gguf", gguf_pieces());
  const std::filesystem::path characters = write("characters", sentencepiece());
  EXPECT_EQ(BaseTokenizer(characters).mismatch_of(pieces), "");
  EXPECT_EQ(BaseTokenizer(pieces).mismatch_of(characters), "");
  GgufEntries other = gguf_bytes();
  other[2].second = std::vector<std::string>{"b", "a", "ab", "<|end|>"};
  EXPECT_THAT(BaseTokenizer(json).mismatch_of(write_file("other.gguf", other)),
              HasSubstr("vocabulary: token \"a\" is 1 where the base has 0"));
}

}  // namespace
}  // namespace droidspeak
