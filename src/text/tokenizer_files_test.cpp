#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "text/prompt_tokens.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_test_support.h"

namespace droidspeak {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

Json tiny_json() {
  return Json::parse(R"({
    "added_tokens": [{"id": 4, "content": "<end>", "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3}, "merges": ["a b"]}
  })");
}

// What is said when the value at `pointer` is replaced.
std::string failure_with(const char* pointer, Json value) {
  Json json = tiny_json();
  json[Json::json_pointer(pointer)] = std::move(value);
  return failure_in(
      [&] { BpeTokenizer(parse_tokenizer_json(json.dump(), "tokenizer.json").parts); });
}

TEST(TokenizerJson, ReadsTheTinyFile) {
  BpeTokenizer tokenizer(parse_tokenizer_json(tiny_json().dump(), "tokenizer.json").parts);
  EXPECT_EQ(tokenizer.encode("abc<end>", SpecialTokens::kParse), (std::vector<int32_t>{2, 3, 4}));
  EXPECT_EQ(tokenizer.vocab_size(), 5);
}

TEST(TokenizerJson, NamesTheFieldThatIsWrong) {
  EXPECT_THAT(failure_with("/model/type", "Unigram"),
              HasSubstr("tokenizer.json.model.type: 'Unigram'"));
  EXPECT_THAT(failure_with("/model", Json::array()), HasSubstr("model: must be an object"));
  EXPECT_THAT(failure_with("/model/vocab", Json::array()),
              HasSubstr("model.vocab: must be an object"));
  EXPECT_THAT(failure_with("/model/vocab", Json::object()), HasSubstr("has no tokens"));
  EXPECT_THAT(failure_with("/model/vocab/a", -1), HasSubstr("['a']: is -1"));
  EXPECT_THAT(failure_with("/model/vocab/a", "0"), HasSubstr("is \"0\""));
  EXPECT_THAT(failure_with("/model/vocab/a", 1.5), HasSubstr("is 1.5"));
  EXPECT_THAT(failure_with("/model/vocab/a", uint64_t{1} << 63),
              HasSubstr("is 9223372036854775808"));
  EXPECT_THAT(failure_with("/model/vocab/a", 10'000'000), HasSubstr("there are only 4 tokens"));
  EXPECT_THAT(failure_with("/model/vocab/a", 1), HasSubstr("id 1 belongs to both 'a' and 'b'"));
  EXPECT_THAT(failure_with("/model/merges", nullptr), HasSubstr("merges: must be an array"));
  EXPECT_THAT(failure_with("/model/merges/0", "ab"), HasSubstr("merge 0 is \"ab\""));
  EXPECT_THAT(failure_with("/model/merges/0", Json::array({"a"})), HasSubstr("merge 0 is [\"a\"]"));
  EXPECT_THAT(failure_with("/model/merges/0", "a x"), HasSubstr("is not in model.vocab"));
  EXPECT_THAT(failure_with("/model/dropout", 0.1), HasSubstr("dropout: is 0.1"));
  EXPECT_THAT(failure_with("/model/unk_token", "<unk>"),
              HasSubstr("unk_token: '<unk>' is not a token"));
  EXPECT_THAT(failure_with("/model/byte_fallback", "yes"), HasSubstr("must be true or false"));
  EXPECT_THAT(failure_with("/pre_tokenizer/type", "Bert"), HasSubstr("pre_tokenizer.type: 'Bert'"));
  EXPECT_THAT(failure_with("/normalizer", Json{{"type", "Lowercase"}}), HasSubstr("'Lowercase'"));
  EXPECT_THAT(failure_with("/decoder/type", "WordPiece"), HasSubstr("decoder.type: 'WordPiece'"));
  EXPECT_THAT(failure_with("/post_processor", Json{{"type", "RobertaProcessing"}}),
              HasSubstr("post_processor.type: 'RobertaProcessing' is not supported"));
  EXPECT_THAT(failure_with("/post_processor", Json{{"type", "BertProcessing"}}),
              HasSubstr("post_processor.type: 'BertProcessing' is not supported"));
  EXPECT_THAT(failure_with("/added_tokens/0/id", 1),
              HasSubstr("'<end>' has id 1, but that is 'b'"));
  EXPECT_THAT(failure_with("/added_tokens/0/content", "ab"),
              HasSubstr("is token 2 of the vocabulary"));
  EXPECT_THAT(failure_with("/added_tokens/0/id", 1 << 23), HasSubstr("there are only 4 tokens"));
  EXPECT_THAT(failure_with("/added_tokens/0/id", -5), HasSubstr("added_tokens[0].id: is -5"));
  Json split = {{"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Regex", "(("}}}};
  EXPECT_THAT(failure_with("/pre_tokenizer", split),
              HasSubstr("pre_tokenizer.pattern: pattern '(('"));
}

Json piece(const char* token) {
  if (token == nullptr) return {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  return {{"SpecialToken", {{"id", token}, {"type_id", 0}}}};
}

Json template_of(std::vector<const char*> pieces) {
  Json single = Json::array();
  for (const char* token : pieces) single.push_back(piece(token));
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"special_tokens", {{"begin", {{"id", "begin"}, {"ids", {4}}, {"tokens", {"<end>"}}}}}}};
}

TEST(TokenizerJson, TemplatesMayPutOneTokenBeforeATextAndOneBehind) {
  auto around = [](const Json& processor) {
    Json json = tiny_json();
    json["post_processor"] = processor;
    return parse_tokenizer_json(json.dump(), "tokenizer.json").around;
  };
  auto prefix_of = [&](const Json& processor) { return around(processor).prefix.value_or("none"); };
  auto suffix_of = [&](const Json& processor) { return around(processor).suffix.value_or("none"); };
  EXPECT_EQ(suffix_of(template_of({"a", nullptr})), "none");
  EXPECT_EQ(suffix_of(template_of({nullptr, "<end>"})), "<end>");
  EXPECT_EQ(suffix_of(template_of({"a", nullptr, "begin"})), "<end>") << "by the template's name";
  EXPECT_EQ(prefix_of(template_of({nullptr, "<end>"})), "none");
  EXPECT_EQ(prefix_of(nullptr), "none");
  EXPECT_EQ(prefix_of({{"type", "ByteLevel"}}), "none");
  EXPECT_EQ(prefix_of(template_of({nullptr})), "none");
  EXPECT_EQ(prefix_of(template_of({"<end>", nullptr})), "<end>");
  EXPECT_EQ(prefix_of(template_of({"begin", nullptr})), "<end>") << "by the template's name";
  auto refusal = [](const std::vector<const char*>& pieces) {
    return failure_with("/post_processor", template_of(pieces));
  };
  EXPECT_THAT(refusal({"<end>", "a", nullptr}),
              HasSubstr("single[1].SpecialToken.id: 'a' is a second token before the text"));
  EXPECT_THAT(refusal({nullptr, "<end>", "a"}),
              HasSubstr("single[2].SpecialToken.id: 'a' is a second token behind the text"));
  EXPECT_THAT(refusal({nullptr, nullptr}), HasSubstr("the text stands there twice"));
  EXPECT_THAT(refusal({"<end>"}), HasSubstr("post_processor.single: has no text"));
  const Json twice = {{"type", "Sequence"},
                      {"processors", {template_of({"a", nullptr}), template_of({"b", nullptr})}}};
  EXPECT_THAT(failure_with("/post_processor", twice), HasSubstr("'b' is a second token"));
  Json two = template_of({"begin", nullptr});
  two["special_tokens"]["begin"]["ids"] = {4, 4};
  EXPECT_THAT(failure_with("/post_processor", two), HasSubstr("begin.ids: has 2 tokens"));
}

TEST(TokenizerJson, DecodersReplaceAndStripSpacesOnly) {
  auto replaced = [](const char* content) {
    return failure_with(
        "/decoder",
        {{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", content}});
  };
  EXPECT_EQ(replaced(" "), "no failure");
  EXPECT_THAT(replaced("_"), HasSubstr("decoder.content: '_' is not supported"));
  auto stripped = [](const char* content, int start, int stop) {
    return failure_with(
        "/decoder", {{"type", "Strip"}, {"content", content}, {"start", start}, {"stop", stop}});
  };
  EXPECT_EQ(stripped(" ", 1, 0), "no failure");
  EXPECT_EQ(stripped("x", 0, 0), "no failure") << "nothing";
  EXPECT_THAT(stripped(" ", 1, 1), HasSubstr("decoder: is {"));
  EXPECT_THAT(stripped(" ", 2, 0), HasSubstr("only one space in front is stripped"));
  EXPECT_THAT(stripped("x", 1, 0), HasSubstr("only one space in front is stripped"));
}

TEST(TokenizerJson, RefusesDeepSequences) {
  std::string normalizer = R"({"type": "NFC"})";
  for (int depth = 0; depth < 20; ++depth) {
    normalizer = R"({"type": "Sequence", "normalizers": [)" + normalizer + "]}";
  }
  std::string text = tiny_json().dump();
  text.replace(text.find("null"), 4, normalizer);
  EXPECT_THAT(failure_in([&] { parse_tokenizer_json(text, "tokenizer.json"); }),
              HasSubstr("sequences deep"));
}

Json sequence(const char* steps, const Json& step, size_t count) {
  return {{"type", "Sequence"}, {steps, std::vector<Json>(count, step)}};
}

TEST(TokenizerJson, RefusesManySteps) {
  const Json form = {{"type", "NFC"}};
  EXPECT_EQ(failure_with("/normalizer", sequence("normalizers", form, 64)), "no failure");
  EXPECT_THAT(failure_with("/normalizer", sequence("normalizers", form, 65)),
              HasSubstr("normalizer.normalizers[64]: more than 64 steps"));
  const Json digits = {{"type", "Digits"}};
  EXPECT_THAT(failure_with("/pre_tokenizer", sequence("pretokenizers", digits, 65)),
              HasSubstr("pre_tokenizer.pretokenizers[64]: more than 64 steps"));
}

std::string nested_lists(size_t depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

// Wherever a value is shown or copied: that takes stack for every level.
TEST(TokenizerJson, RefusesDeepValues) {
  for (const char* place : {"/model/dropout", "/model/vocab/a", "/added_tokens/0/id", "/other"}) {
    Json json = tiny_json();
    json[Json::json_pointer(place)] = "here";
    std::string text = json.dump();
    text.replace(text.find("\"here\""), 6, nested_lists(100'000));
    EXPECT_EQ(failure_in([&] { parse_tokenizer_json(text, "tokenizer.json"); }),
              "tokenizer.json: JSON is nested deeper than 64 levels")
        << place;
  }
}

TEST(TokenizerJson, RefusesAddedTokensOfManyBytes) {
  auto failure_of_tokens = [](int count, size_t bytes) {
    Json tokens = Json::array();
    for (int i = 0; i < count; ++i) {
      std::string content = std::to_string(i) + " ";
      content.resize(bytes, 'a');
      tokens.push_back({{"id", 4 + i}, {"content", content}});
    }
    return failure_with("/added_tokens", std::move(tokens));
  };
  EXPECT_EQ(failure_of_tokens(1, 1024), "no failure");
  EXPECT_THAT(failure_of_tokens(1, 1025),
              HasSubstr("tokenizer.json: added_tokens: token 4 has 1025 bytes; at most 1024"));
  EXPECT_THAT(failure_of_tokens(5000, 1000),
              HasSubstr("tokenizer.json: added_tokens: 5000 tokens have 5000000 bytes in all"));
}

TEST(TokenizerJson, HolesInTheVocabularyAreSilent) {
  Json json = tiny_json();
  json["added_tokens"][0]["id"] = 300;
  BpeTokenizer tokenizer(parse_tokenizer_json(json.dump(), "tokenizer.json").parts);
  EXPECT_EQ(tokenizer.vocab_size(), 301);
  EXPECT_EQ(tokenizer.bytes_of(100), "");
  EXPECT_EQ(tokenizer.find(""), -1);
}

TEST(TokenizerJson, DamagedFilesFailCleanly) {
  std::string text = read_file(tokenizer_test_folder() / "tiny/llama2/tokenizer.json");
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    std::string damaged = text.substr(0, round % 3 == 0 ? random() % text.size() : text.size());
    for (int flips = 0; flips < 4 && !damaged.empty(); ++flips) {
      damaged[random() % damaged.size()] = static_cast<char>(random() % 256);
    }
    try {
      BpeTokenizer tokenizer(parse_tokenizer_json(damaged, "x").parts);
      tokenizer.encode("some text <s> 123", SpecialTokens::kParse);
    } catch (const Failure&) {
    }
  }
}

TEST(SentencePieceModel, DamagedFilesFailCleanly) {
  std::string bytes =
      read_file(tokenizer_test_folder() / "mistral/tokenizer.model.v1").substr(0, 20000);
  EXPECT_THAT(failure_in([&] { parse_sentencepiece_model("", "m"); }),
              HasSubstr("m: has no pieces"));
  EXPECT_THAT(failure_in([&] { parse_sentencepiece_model(bytes, "m"); }), HasSubstr("m: "));
  std::mt19937 random(4);
  for (int round = 0; round < 300; ++round) {
    std::string damaged = bytes.substr(0, random() % bytes.size());
    for (int flips = 0; flips < 4 && !damaged.empty(); ++flips) {
      damaged[random() % damaged.size()] = static_cast<char>(random() % 256);
    }
    EXPECT_NE(failure_in([&] { parse_sentencepiece_model(damaged, "m"); }), "no failure");
  }
}

class HfFolderTest : public testing::Test {
 protected:
  void SetUp() override { write("tokenizer.json", tiny_json().dump()); }

  void write(const char* name, const std::string& content) {
    write_file_atomically(folder.path() / name, content);
  }

  std::string failure() {
    return failure_in([&] { load_hf_tokenizer(folder.path()); });
  }

  TemporaryFolder folder;
};

TEST_F(HfFolderTest, NeedsNothingButTheTokenizer) {
  auto tokenizer = load_hf_tokenizer(folder.path());
  EXPECT_EQ(tokenizer->bos_id, -1);
  EXPECT_FALSE(tokenizer->bos_for_prompts);
  EXPECT_TRUE(tokenizer->chat_template.empty());
}

TEST_F(HfFolderTest, ReadsTheConfig) {
  write("tokenizer_config.json", R"({"bos_token": "a", "eos_token": {"content": "<end>"},
    "add_bos_token": true, "chat_template": "T",
    "added_tokens_decoder": {"4": {"content": "<end>", "special": true},
                             "5": {"content": "<more>", "special": true, "rstrip": true}}})");
  write("generation_config.json", R"({"eos_token_id": [4, 5]})");
  auto tokenizer = load_hf_tokenizer(folder.path());
  EXPECT_EQ(tokenizer->bos_id, 0);
  EXPECT_EQ(tokenizer->eos_id, 4);
  EXPECT_TRUE(tokenizer->bos_for_prompts);
  EXPECT_EQ(tokenizer->chat_template, "T");
  EXPECT_EQ(tokenizer->end_of_turn_ids, (std::vector<int32_t>{4, 5}));
  EXPECT_EQ(tokenizer->encode("a<more>  b", SpecialTokens::kParse),
            (std::vector<int32_t>{0, 5, 1}));
}

TEST_F(HfFolderTest, ConfigNamesTheEndsOfAnswersWhereNothingElseDoes) {
  auto ends = [&] { return load_hf_tokenizer(folder.path())->end_of_turn_ids; };
  write("config.json", R"({"eos_token_id": 1})");
  EXPECT_EQ(ends(), (std::vector<int32_t>{1}));
  write("config.json", R"({"eos_token_id": [1, 2]})");
  EXPECT_EQ(ends(), (std::vector<int32_t>{1, 2}));
  write("tokenizer_config.json", R"({"eos_token": "<end>"})");
  EXPECT_EQ(ends(), (std::vector<int32_t>{4, 1, 2})) << "the tokenizer's, too";
  write("generation_config.json", R"({"temperature": 1})");
  EXPECT_EQ(ends(), (std::vector<int32_t>{4, 1, 2}));
  write("generation_config.json", R"({"eos_token_id": 3})");
  EXPECT_EQ(ends(), (std::vector<int32_t>{4, 3}));
  write("config.json", R"({"eos_token_id": "x"})");
  EXPECT_EQ(ends(), (std::vector<int32_t>{4, 3})) << "not asked";
  std::filesystem::remove(folder.path() / "generation_config.json");
  EXPECT_THAT(failure(), HasSubstr("config.json: eos_token_id: \"x\" is not a token id"));
  write("config.json", R"({"eos_token_id": null})");
  EXPECT_EQ(ends(), (std::vector<int32_t>{4}));
}

TEST_F(HfFolderTest, OlderFilesHaveAMapOfSpecialTokens) {
  write("special_tokens_map.json", R"({"bos_token": "a", "eos_token": {"content": "b"}})");
  auto tokenizer = load_hf_tokenizer(folder.path());
  EXPECT_EQ(tokenizer->bos_id, 0);
  EXPECT_EQ(tokenizer->eos_text, "b");
  EXPECT_EQ(tokenizer->end_of_turn_ids, (std::vector<int32_t>{1}));
  write("tokenizer_config.json", R"({"eos_token": "<end>"})");
  EXPECT_EQ(load_hf_tokenizer(folder.path())->end_of_turn_ids, (std::vector<int32_t>{4}));
  write("tokenizer_config.json", R"({"bos_token": null, "eos_token": "<end>"})");
  EXPECT_EQ(load_hf_tokenizer(folder.path())->bos_id, -1) << "none, whatever the map says";
  write("special_tokens_map.json", R"({"bos_token": "none"})");
  EXPECT_EQ(failure(), "no failure") << "not asked";
  write("tokenizer_config.json", "{}");
  EXPECT_THAT(failure(), HasSubstr("special_tokens_map.json: bos_token: 'none' is not a token"));
  write("special_tokens_map.json", "[]");
  EXPECT_THAT(failure(), HasSubstr("special_tokens_map.json: the file: must hold a JSON object"));
}

TEST_F(HfFolderTest, RefusesStepsOfOtherTokenizers) {
  for (const char* name : {"do_lower_case", "split_special_tokens"}) {
    write("tokenizer_config.json", Json{{name, true}}.dump());
    EXPECT_THAT(failure(), HasSubstr(std::string("tokenizer_config.json: ") + name + ": is true"));
    write("tokenizer_config.json", Json{{name, false}}.dump());
    EXPECT_EQ(failure(), "no failure") << name;
  }
}

TEST_F(HfFolderTest, WhatStandsBehindAPromptIsTheTemplatesOrTheConfigs) {
  auto end = [&] { return load_hf_tokenizer(folder.path())->end_of_prompt_id; };
  write("tokenizer_config.json", R"({"eos_token": "a"})");
  EXPECT_EQ(end(), -1);
  write("tokenizer_config.json", R"({"add_eos_token": true, "eos_token": "a"})");
  EXPECT_EQ(end(), 0);
  EXPECT_EQ(as_prompt(*load_hf_tokenizer(folder.path()), {1, 2}), (std::vector<int32_t>{1, 2, 0}));
  Json json = tiny_json();
  json["post_processor"] = template_of({nullptr, "<end>"});
  write("tokenizer.json", json.dump());
  EXPECT_EQ(end(), 0) << "the configuration is asked first";
  write("tokenizer_config.json", R"({"add_eos_token": false, "eos_token": "a"})");
  EXPECT_EQ(end(), -1);
  write("tokenizer_config.json", R"({"eos_token": "a"})");
  EXPECT_EQ(end(), 4) << "which need not be the token that ends answers";
  write("tokenizer_config.json", R"({"add_eos_token": true})");
  EXPECT_THAT(failure(),
              HasSubstr("tokenizer_config.json: add_eos_token: is true, but there is no EOS"));
  write("tokenizer_config.json", R"({"add_eos_token": 1})");
  EXPECT_THAT(failure(), HasSubstr("tokenizer_config.json: add_eos_token: must be true or false"));
  write("tokenizer_config.json", "{}");
  json["post_processor"] = template_of({nullptr, "<none>"});
  write("tokenizer.json", json.dump());
  EXPECT_THAT(failure(), HasSubstr("tokenizer.json: post_processor: '<none>' is not a token"));
}

TEST_F(HfFolderTest, WhatStandsBeforeATextIsTheBosOfTheConfig) {
  Json json = tiny_json();
  json["post_processor"] = template_of({"<end>", nullptr});
  write("tokenizer.json", json.dump());
  EXPECT_EQ(load_hf_tokenizer(folder.path())->bos_id, 4);
  write("tokenizer_config.json", R"({"bos_token": "<end>"})");
  EXPECT_TRUE(load_hf_tokenizer(folder.path())->bos_for_prompts);
  write("tokenizer_config.json", R"({"bos_token": "a"})");
  EXPECT_THAT(failure(), HasSubstr("tokenizer.json: post_processor: puts '<end>' before a text"));
  write("tokenizer_config.json", R"({"bos_token": "a", "add_bos_token": true})");
  EXPECT_EQ(load_hf_tokenizer(folder.path())->bos_id, 0) << "as said";
}

TEST_F(HfFolderTest, RefusesDeepOrEndlessConfigs) {
  const std::string deep = nested_lists(100'000);
  write("tokenizer_config.json",
        R"({"added_tokens_decoder": {"4": {"content": "<end>", "more": )" + deep + "}}}");
  EXPECT_THAT(failure(), HasSubstr("tokenizer_config.json: JSON is nested deeper than 64 levels"));
  write("tokenizer_config.json", R"({"more": ")" + std::string(17 << 20, 'x') + R"("})");
  EXPECT_THAT(failure(), HasSubstr("at most 16777216 are read"));
  std::string many = "0";
  for (int i = 0; i < 21; ++i) many += "," + many;
  write("tokenizer_config.json", R"({"more": [)" + many + "]}");
  EXPECT_THAT(failure(), HasSubstr("tokenizer_config.json: JSON has more than 1048576 values"));
  write("tokenizer_config.json", "{}");
  write("generation_config.json", R"({"eos_token_id": )" + deep + "}");
  EXPECT_THAT(failure(), HasSubstr("generation_config.json: JSON is nested deeper"));
}

TEST_F(HfFolderTest, TheChatTemplateMayBeAListOrAFile) {
  write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "A"}, {"name": "default", "template": "B"}]})");
  EXPECT_EQ(load_hf_tokenizer(folder.path())->chat_template, "B");
  write("chat_template.jinja", "C");
  EXPECT_EQ(load_hf_tokenizer(folder.path())->chat_template, "C");
}

TEST_F(HfFolderTest, ThePostProcessorSaysWhetherBosIsExpected) {
  auto tokenizer = load_hf_tokenizer(tokenizer_test_folder() / "tiny/llama3");
  EXPECT_TRUE(tokenizer->bos_for_prompts);
  EXPECT_EQ(tokenizer->bos_text, "<|endoftext|>");
  EXPECT_FALSE(load_hf_tokenizer(tokenizer_test_folder() / "tiny/qwen2")->bos_for_prompts);
}

// Without them a prompt would have other tokens.
TEST_F(HfFolderTest, FilesThatCannotBeReadAreNotTakenForMissing) {
  for (const char* name : {"tokenizer_config.json", "generation_config.json", "chat_template.jinja",
                           "tokenizer.json"}) {
    std::filesystem::remove(folder.path() / name);
    std::filesystem::create_symlink("nowhere", folder.path() / name);
    EXPECT_THAT(failure(), HasSubstr(std::string(name) + ": cannot open")) << name;
    std::filesystem::remove(folder.path() / name);
    std::filesystem::create_directory(folder.path() / name);
    EXPECT_THAT(failure(), HasSubstr(std::string(name) + ": not a regular file")) << name;
    std::filesystem::remove(folder.path() / name);
  }
}

TEST_F(HfFolderTest, NamesFileFieldAndValue) {
  write("tokenizer_config.json", "[]");
  EXPECT_THAT(failure(), HasSubstr("tokenizer_config.json: the file: must hold a JSON object"));
  write("tokenizer_config.json", "{");
  EXPECT_THAT(failure(), HasSubstr("tokenizer_config.json"));
  write("tokenizer_config.json", R"({"eos_token": 5})");
  EXPECT_THAT(failure(), HasSubstr("tokenizer_config.json: eos_token"));
  write("tokenizer_config.json", R"({"eos_token": "<none>"})");
  EXPECT_THAT(failure(), HasSubstr("eos_token: '<none>' is not a token"));
  write("tokenizer_config.json", R"({"added_tokens_decoder": {"x": {"content": "y"}}})");
  EXPECT_THAT(failure(), HasSubstr("added_tokens_decoder: 'x' is not a token id"));
  write("tokenizer_config.json", R"({"chat_template": 3})");
  EXPECT_THAT(failure(), HasSubstr("chat_template: must be"));
  write("tokenizer_config.json", R"({"add_bos_token": "yes"})");
  EXPECT_THAT(failure(), HasSubstr("tokenizer_config.json: add_bos_token: must be true or false"));
  write("tokenizer_config.json", R"({"add_bos_token": null})");
  EXPECT_EQ(failure(), "no failure");
  write("generation_config.json", R"({"eos_token_id": "x"})");
  EXPECT_THAT(failure(), HasSubstr("generation_config.json: eos_token_id"));
  TemporaryFolder empty;
  EXPECT_THAT(failure_in([&] { load_hf_tokenizer(empty.path()); }),
              HasSubstr("neither tokenizer.json"));
}

}  // namespace
}  // namespace droidspeak
