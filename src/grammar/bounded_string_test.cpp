#include "grammar/bounded_string.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "grammar/grammar_test_support.h"

namespace droidspeak {
namespace {

constexpr const char* kLetter = "x";
constexpr const char* kThreeBytes = "\xE2\x82\xAC";

std::string repeat(const std::string& text, size_t count) {
  std::string result;
  for (size_t i = 0; i < count; ++i) result += text;
  return result;
}

std::string bounded(size_t low, size_t high) {
  std::string most = high == kUnbounded ? "" : fmt::format(R"(,"maxLength":{})", high);
  return fmt::format(R"({{"type":"string","minLength":{}{}}})", low, most);
}

class BoundedStringTest : public testing::Test {
 protected:
  std::shared_ptr<const CompiledGrammar> compile(const std::string& schema) {
    auto grammar = compiler_.compile({OutputFormat::Kind::kJsonSchema, schema});
    EXPECT_TRUE(grammar) << schema << ": " << (grammar ? "" : grammar.error().message);
    return grammar ? *grammar : nullptr;
  }

  // Byte by byte.
  static bool takes(GrammarMatcher& matcher, std::string_view text) {
    for (char c : text) {
      if (!matcher.accept(static_cast<unsigned char>(c))) return false;
    }
    return true;
  }

  static bool is_whole(const std::shared_ptr<const CompiledGrammar>& grammar,
                       const std::string& text) {
    GrammarMatcher matcher(grammar);
    return takes(matcher, text) && matcher.is_finished();
  }

  ByteTokenizer tokenizer_;
  GrammarCompiler compiler_{tokenizer_, tokenizer_.vocab_size()};
};

TEST_F(BoundedStringTest, HoldsEveryBoundExactly) {
  constexpr size_t kT = kUnrolledCharacters;
  const std::pair<size_t, size_t> cases[] = {
      {0, 0},          {0, 1},           {1, 1},           {0, kT - 1},      {0, kT},
      {kT, kT},        {kT - 1, kT + 1}, {0, kT + 1},      {kT + 1, kT + 1}, {3, 40},
      {kT, kT + 5},    {30, 41},         {0, 300},         {150, 300},       {0, kUnbounded},
      {5, kUnbounded}, {kT, kUnbounded}, {25, kUnbounded}, {200, kUnbounded}};
  for (auto [low, high] : cases) {
    auto grammar = compile(bounded(low, high));
    ASSERT_TRUE(grammar);
    size_t most = high == kUnbounded ? low + 60 : high + 3;
    for (size_t length = low < 3 ? 0 : low - 3; length <= most; ++length) {
      bool fits = length >= low && length <= high;
      for (const char* character : {kLetter, kThreeBytes}) {
        std::string text = '"' + repeat(character, length) + '"';
        EXPECT_EQ(is_whole(grammar, text), fits) << low << " to " << high << ", " << length;
      }
    }
  }
}

// The masks against what the grammar takes byte by byte, in front of, at and behind each bound.
TEST_F(BoundedStringTest, AllowsTheTokensWhoseBytesFit) {
  for (auto [low, high] : std::vector<std::pair<size_t, size_t>>{
           {0, 18}, {2, 20}, {0, 23}, {7, 60}, {21, 45}, {22, kUnbounded}}) {
    std::string schema = fmt::format(
        R"({{"type":"object","required":["a"],"properties":{{"a":{}}}}})", bounded(low, high));
    auto grammar = compile(schema);
    ASSERT_TRUE(grammar);
    size_t most = high == kUnbounded ? low + 10 : high;
    for (size_t length = 0; length <= most; ++length) {
      std::string text = R"({"a":")" + repeat(kLetter, length);
      GrammarMatcher matcher(grammar);
      ASSERT_TRUE(takes(matcher, text));
      for (int32_t token = 0; token < tokenizer_.vocab_size(); ++token) {
        if (tokenizer_.is_special(token)) continue;
        GrammarMatcher one(grammar);
        bool fits = takes(one, text) && takes(one, tokenizer_.bytes_of(token));
        EXPECT_EQ(matcher.allows(token), fits)
            << schema << " behind " << length << ": " << tokenizer_.bytes_of(token);
      }
    }
  }
}

TEST_F(BoundedStringTest, LongerOnesCompileToNoMore) {
  size_t some = compile(bounded(0, 40))->bytes();
  for (size_t high : {128, 129, 1000, 16000}) EXPECT_EQ(compile(bounded(0, high))->bytes(), some);
}

TEST_F(BoundedStringTest, CountedRunsAreSeen) {
  EXPECT_TRUE(has_counted_run("root ::= [a-z]{0,21}"));
  EXPECT_TRUE(has_counted_run("root ::= ([a-z]){21,}"));
  EXPECT_TRUE(has_counted_run("root ::= \"a\"{1,2} [a]{3} [a-z]{400}"));
  EXPECT_FALSE(has_counted_run("root ::= [a-z]{0,20} \"a\"{0,100} ({"));
  EXPECT_FALSE(has_counted_run("root ::= [a-z]* x{3"));
  EXPECT_FALSE(has_counted_run("{"));
}

}  // namespace
}  // namespace droidspeak
