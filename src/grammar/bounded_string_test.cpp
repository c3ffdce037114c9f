#include "grammar/bounded_string.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "grammar/counted_run.h"
#include "grammar/grammar_test_support.h"
#include "grammar/schema_grammar.h"

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
  std::shared_ptr<const CompiledGrammar> compile(const OutputFormat& format) {
    auto grammar = compiler_.compile(format);
    EXPECT_TRUE(grammar) << format.text << ": " << (grammar ? "" : grammar.error().message);
    return grammar ? *grammar : nullptr;
  }

  std::shared_ptr<const CompiledGrammar> compile(const std::string& schema) {
    return compile({OutputFormat::Kind::kJsonSchema, schema});
  }

  // Masks behind `before` and up to `most` letters against what the grammar takes byte by byte, for
  // tokens of at most `longest` bytes; longer ones never fit.
  void check_masks(const std::shared_ptr<const CompiledGrammar>& grammar,
                   const std::string& before,
                   size_t most,
                   size_t longest) {
    for (size_t length = 0; length <= most; length += length + 3 < most ? 3 : 1) {
      std::string text = before + repeat(kLetter, length);
      GrammarMatcher matcher(grammar);
      ASSERT_TRUE(takes(matcher, text));
      for (int32_t token = 0; token < tokenizer_.vocab_size(); ++token) {
        std::string_view bytes = tokenizer_.bytes_of(token);
        if (tokenizer_.is_special(token)) continue;
        GrammarMatcher one(grammar);
        bool fits = bytes.size() <= longest && takes(one, text) && takes(one, bytes);
        EXPECT_EQ(matcher.allows(token), fits) << "behind " << length << ": " << bytes;
      }
    }
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

constexpr size_t kAnyLength = 1000;

std::string object_with(const std::string& member) {
  return fmt::format(R"({{"type":"object","required":["a"],"properties":{{"a":{}}}}})", member);
}

// In front of, at and behind each bound. Long tokens are left out where runs are counted.
TEST_F(BoundedStringTest, AllowsTheTokensWhoseBytesFit) {
  for (auto [low, high] : std::vector<std::pair<size_t, size_t>>{
           {0, 18}, {2, 20}, {5, kUnbounded}, {0, 23}, {7, 60}, {21, 45}, {22, kUnbounded}}) {
    SCOPED_TRACE(bounded(low, high));
    auto grammar = compile(object_with(bounded(low, high)));
    ASSERT_TRUE(grammar);
    bool is_counted = high == kUnbounded ? low > kUnrolledCharacters : high > kUnrolledCharacters;
    check_masks(grammar, R"({"a":")", high == kUnbounded ? low + 45 : high,
                is_counted ? kUnrolledCharacters : kAnyLength);
  }
}

// Free text beside them may hold any token, so that none are left out.
TEST_F(BoundedStringTest, TagsAllowLongTokensWhoseBytesFit) {
  for (auto [low, high] : std::vector<std::pair<size_t, size_t>>{{0, 45}, {22, 44}}) {
    SCOPED_TRACE(bounded(low, high));
    std::string tag = R"({"type":"structural_tag","format":{"type":"tag","begin":"<c>",)"
                      R"("content":{"type":"json_schema","json_schema":)" +
                      object_with(bounded(low, high)) + R"(},"end":"</c>"}})";
    auto grammar = compile({OutputFormat::Kind::kStructuralTag, tag});
    ASSERT_TRUE(grammar);
    check_masks(grammar, R"(<c>{"a":")", high, kAnyLength);
  }
}

TEST_F(BoundedStringTest, LongerOnesCompileToNoMore) {
  size_t some = compile(bounded(0, 40))->bytes();
  for (size_t high : {128, 129, 1000, 16000}) EXPECT_EQ(compile(bounded(0, high))->bytes(), some);
}

TEST_F(BoundedStringTest, CountedRunsAreSeen) {
  for (const char* grammar :
       {"root ::= [a-z]{0,21}", "root ::= ([a-z]){21,}", "root ::= ( ( [a-z] ) ){ 0 , 500 }",
        "root ::= \"a\"{1,2} [a]{3} [a-z]{400}", "root ::= a{0,500}\na ::= [a-z]\n",
        "a ::= ([a-z]) # a letter\nroot ::= \"x\" (a){21}", "root ::= [\"]{21} \"",
        "root ::= [a]{99999999999999999999999}"})
    EXPECT_TRUE(has_counted_run(grammar)) << grammar;
  for (const char* grammar :
       {"root ::= [a-z]{0,20} \"a\"{0,100} ({", "root ::= [a-z]* x{3", "{", "){21}", "",
        "root ::= a{0,500}\na ::= [a-z] \"b\"", "root ::= a{0,500}\na ::= [a-z] | \"b\"",
        "root ::= ([a-z] \"b\"){21}", "root ::= a{20}\na ::= [a-z]"})
    EXPECT_FALSE(has_counted_run(grammar)) << grammar;
}

TEST_F(BoundedStringTest, QuotedTextHasNoRuns) {
  EXPECT_FALSE(has_counted_run(R"(root ::= "[a]{21}")"));
  EXPECT_FALSE(has_counted_run(R"(root ::= "\"[a]{21}")"));
  EXPECT_FALSE(has_counted_run(R"(root ::= [a\]{21}])"));
  EXPECT_FALSE(has_counted_run("root ::= \"a\" # [a]{21}"));
}

// A text that is read anew from each of its half a million brackets keeps a server busy for hours.
TEST_F(BoundedStringTest, BoundsEndAtTheFirstOtherCharacter) {
  EXPECT_FALSE(has_counted_run("root ::= [a]{x21}"));
  EXPECT_FALSE(has_counted_run(repeat("]{", 1 << 19)));
  EXPECT_FALSE(has_counted_run(repeat("[]{", 1 << 19)));
}

std::string schema_of_lengths(size_t num) {
  std::string members;
  for (size_t i = 0; i < num; ++i)
    members += fmt::format(R"({}"p{}":{})", i > 0 ? "," : "", i, bounded(0, 21 + i));
  return R"({"type":"object","properties":{)" + members + "}}";
}

TEST_F(BoundedStringTest, DifferentBoundsCountTogether) {
  EXPECT_TRUE(compile(schema_of_lengths(24)));
  EXPECT_FALSE(compiler_.compile({OutputFormat::Kind::kJsonSchema, schema_of_lengths(40)}));
}

// A pattern's run costs what a string of these lengths costs, and the same run nothing more.
TEST_F(BoundedStringTest, RunsOfPatternsCostWhatTheyUnroll) {
  auto states = [](const std::string& schema) {
    size_t most = 0;
    for (size_t step = 4096; step > 0; step /= 2) {
      GrammarBudget budget({.states = most + step});
      try {
        schema_to_grammar(schema, budget);
      } catch (const Failure&) {
        most += step;
      }
    }
    return most;
  };
  auto pattern = [](const std::string& text) {
    return R"({"type":"string","pattern":")" + text + R"("})";
  };
  for (auto [low, high] : std::vector<std::pair<size_t, size_t>>{{0, 20}, {0, 1000}, {30, 1000}}) {
    std::string run = fmt::format("^.{{{},{}}}$", low, high);
    size_t as_length = states(bounded(low, high));
    size_t as_pattern = states(pattern(run));
    EXPECT_LE(as_pattern, as_length + 40) << run;
    EXPECT_GE(as_pattern + 60, as_length) << run;
    EXPECT_LE(states(pattern(run + "|" + run)), as_pattern + 20) << run;
  }
  EXPECT_LT(states(pattern("^[0-9]{0,20}$")), states(pattern("^.{0,20}$")) / 2);
}

}  // namespace
}  // namespace droidspeak
