// What the formats of many tools cost with a vocabulary of today's size.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "grammar/grammar_test_support.h"

namespace droidspeak {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;
using Kind = OutputFormat::Kind;

// Bytes, and words of two to five letters.
class LargeTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kTokens = 50000;

  LargeTokenizer() {
    for (int i = 0; i < 256; ++i) texts_.emplace_back(1, static_cast<char>(i));
    texts_.emplace_back("<|end|>");
    for (int32_t i = 0; static_cast<int32_t>(texts_.size()) < kTokens; ++i) {
      std::string word(i % 3 == 0 ? " " : "");
      for (int32_t rest = i + 26; rest > 0; rest /= 26) word += static_cast<char>('a' + rest % 26);
      texts_.push_back(word);
    }
    eos_id = 256;
    end_of_turn_ids = {256};
  }

  std::vector<int32_t> encode(std::string_view, SpecialTokens) const override { return {}; }

  std::string_view bytes_of(int32_t id) const override { return texts_[static_cast<size_t>(id)]; }

  std::string decode(const std::vector<int32_t>&, SpecialTokens) const override { return {}; }

  int32_t vocab_size() const override { return kTokens; }

  bool is_special(int32_t id) const override { return id == 256; }

  int32_t find(std::string_view /*token*/) const override { return -1; }

 private:
  std::vector<std::string> texts_;
};

template <class MakeMember>
OutputFormat tools(int num_tools, int num_members, MakeMember make_member) {
  OrderedJson tags = OrderedJson::array();
  for (int i = 0; i < num_tools; ++i) {
    OrderedJson properties = OrderedJson::object();
    for (int j = 0; j < num_members; ++j)
      properties["property" + std::to_string(j)] = make_member(i * num_members + j);
    tags.push_back({{"type", "tag"},
                    {"begin", "<call>tool" + std::to_string(i) + " "},
                    {"content",
                     {{"type", "json_schema"},
                      {"json_schema", {{"type", "object"}, {"properties", properties}}}}},
                    {"end", "</call>"}});
  }
  OrderedJson format = {{"type", "triggered_tags"}, {"triggers", {"<call>"}}, {"tags", tags}};
  return {Kind::kStructuralTag, OrderedJson{{"type", "structural_tag"}, {"format", format}}.dump()};
}

OrderedJson text(int) {
  return {{"type", "string"}};
}

OrderedJson bounded_text(int i) {
  return {{"type", "string"}, {"maxLength", 129 + i}};
}

class LargeVocabularyTest : public testing::Test {
 protected:
  std::string refusal(const OutputFormat& format) {
    auto grammar = compiler_.compile(format);
    return grammar ? "" : grammar.error().message;
  }

  LargeTokenizer tokenizer_;
  GrammarCompiler compiler_{tokenizer_, LargeTokenizer::kTokens};
};

TEST_F(LargeVocabularyTest, ManyPlainToolsAreSmall) {
  for (const OutputFormat& format : {tools(128, 6, text), tools(512, 2, text)}) {
    auto grammar = compiler_.compile(format);
    ASSERT_TRUE(grammar) << grammar.error().message;
    EXPECT_LT((*grammar)->bytes(), size_t{8} << 20);
  }
}

// Before they reach the library, which would take minutes and gigabytes.
TEST_F(LargeVocabularyTest, LongRunsCountTogetherOverAllTools) {
  EXPECT_NE(refusal(tools(512, 16, bounded_text)).find("states"), std::string::npos);
  EXPECT_NE(refusal(tools(40, 1, bounded_text)).find("states"), std::string::npos);
}

// Whoever has them: the library compiles equal runs once.
TEST_F(LargeVocabularyTest, EqualRunsCountOnceOverAllTools) {
  auto same_text = [](int) { return OrderedJson{{"type", "string"}, {"maxLength", 100}}; };
  auto same_pattern = [](int) {
    return OrderedJson{{"type", "string"}, {"pattern", "^[^x]{1,64}$"}};
  };
  auto one = compiler_.compile(tools(1, 1, same_text));
  auto many = compiler_.compile(tools(32, 1, same_text));
  ASSERT_TRUE(one);
  ASSERT_TRUE(many) << many.error().message;
  EXPECT_LT((*many)->bytes(), (*one)->bytes() + (size_t{64} << 10));
  EXPECT_EQ(refusal(tools(32, 1, same_pattern)), "");
}

TEST_F(LargeVocabularyTest, BoundedObjectsCountToo) {
  auto bounded_object = [](int i) {
    return OrderedJson{{"type", "object"}, {"maxProperties", 300 + i}};
  };
  EXPECT_NE(refusal(tools(12, 4, bounded_object)).find("states"), std::string::npos);
}

TEST_F(LargeVocabularyTest, PatternsCountTogetherOverAllTools) {
  auto pattern = [](int i) {
    return OrderedJson{{"type", "string"},
                       {"pattern", "^[a-z]{3}[^x]{" + std::to_string(40 + i) + "}$"}};
  };
  EXPECT_NE(refusal(tools(10, 8, pattern)).find("states"), std::string::npos);
}

// With each of them the text may be in all others at the same time.
TEST_F(LargeVocabularyTest, RepetitionsWithoutAnEndCountByTheirPairs) {
  auto loops = [](int num, const std::string& before, const std::string& after) {
    std::string pattern = before;
    for (int i = 0; i < num; ++i) pattern += ".*";
    return OutputFormat{Kind::kJsonSchema,
                        Json{{"type", "string"}, {"pattern", pattern + after}}.dump()};
  };
  EXPECT_NE(refusal(loops(400, "^", "$")).find("states"), std::string::npos);
  EXPECT_NE(refusal(loops(400, "a", "b")).find("states"), std::string::npos);
  EXPECT_EQ(refusal(loops(20, "^", "$")), "");
  EXPECT_EQ(refusal(loops(400, "", "")), "");  // any text
}

}  // namespace
}  // namespace droidspeak
