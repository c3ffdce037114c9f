#include "grammar/grammar_compiler.h"

#include <algorithm>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/regex.h"
#include "base/utf8.h"
#include "grammar/grammar_test_support.h"

namespace droidspeak {
namespace {

using Json = nlohmann::json;
using Kind = OutputFormat::Kind;

constexpr int kTexts = 40;  // of each grammar

class GrammarCompilerTest : public testing::Test {
 protected:
  std::shared_ptr<const CompiledGrammar> compile(Kind kind, const std::string& text) {
    auto grammar = compiler_.compile({kind, text});
    EXPECT_TRUE(grammar) << text << ": " << (grammar ? "" : grammar.error().message);
    return grammar ? *grammar : nullptr;
  }

  std::vector<std::string> texts(Kind kind, const std::string& text) {
    std::vector<std::string> result;
    auto grammar = compile(kind, text);
    for (uint32_t seed = 0; grammar && seed < kTexts; ++seed) {
      if (auto made = random_text(grammar, seed)) result.push_back(*made);
    }
    EXPECT_GT(result.size(), kTexts / 2) << text;
    return result;
  }

  // Texts of a schema, parsed; each is one JSON value.
  std::vector<Json> values(const std::string& schema) {
    std::vector<Json> result;
    for (const std::string& text : texts(Kind::kJsonSchema, schema)) {
      Json value = Json::parse(text, nullptr, false);
      EXPECT_FALSE(value.is_discarded()) << schema << " made " << text;
      result.push_back(value);
    }
    return result;
  }

  std::string refusal(Kind kind, const std::string& text) {
    auto grammar = compiler_.compile({kind, text});
    EXPECT_FALSE(grammar) << text;
    return grammar ? "" : grammar.error().message;
  }

  ByteTokenizer tokenizer_;
  // Three more ids than the tokenizer knows, as models have.
  GrammarCompiler compiler_{tokenizer_, tokenizer_.vocab_size() + 3};
};

TEST_F(GrammarCompilerTest, ArraysHoldTheirBounds) {
  struct Case {
    const char* schema;
    std::vector<std::string> made;
    std::vector<std::string> not_made;
  };

  const Case cases[] = {
      {R"({"prefixItems": [{"type": "integer"}, {"type": "null"}]})",
       {"[]", "[1,null]", "[1,null,5]", "[1,null,5,[]]"},
       {"[null]", "[1,1]"}},
      {R"({"prefixItems": [{"type": "integer"}], "items": false})", {"[]", "[1]"}, {"[1,2]"}},
      {R"({"prefixItems": [{"type": "integer"}], "items": false, "minItems": 1})", {"[1]"}, {"[]"}},
      {R"({"prefixItems": [{"const": 1}], "items": {"const": 2}, "minItems": 3, "maxItems": 4})",
       {"[1,2,2]", "[1,2,2,2]"},
       {"[]", "[1]", "[1,2]", "[1,2,2,2,2]", "[1,1,2]"}},
      {R"({"prefixItems": [{"const": 1}, {"const": 2}], "maxItems": 1})", {"[]", "[1]"}, {"[1,2]"}},
      {R"({"items": {"const": 1}, "minItems": 2, "maxItems": 3})",
       {"[1,1]", "[1,1,1]"},
       {"[]", "[1]", "[1,1,1,1]"}},
      {R"({"items": {"const": 1}, "maxItems": 1})", {"[]", "[1]"}, {"[1,1]"}},
      {R"({"items": {"const": 1}, "minItems": 1})", {"[1]", "[1,1,1,1]"}, {"[]"}},
      {R"({"items": {"const": 1}, "maxItems": 0})", {"[]"}, {"[1]"}},
      {R"({"type": "array", "items": false})", {"[]"}, {"[1]"}}};
  for (const auto& [schema, made, not_made] : cases) {
    auto grammar = compile(Kind::kJsonSchema, schema);
    ASSERT_TRUE(grammar);
    auto makes = [&](const std::string& text) {
      GrammarMatcher matcher(grammar);
      bool fits = std::ranges::all_of(
          text, [&](char c) { return matcher.accept(static_cast<unsigned char>(c)); });
      return fits && matcher.allows(ByteTokenizer::kEnd);
    };
    for (const std::string& text : made) EXPECT_TRUE(makes(text)) << schema << ' ' << text;
    for (const std::string& text : not_made) EXPECT_FALSE(makes(text)) << schema << ' ' << text;
  }
}

TEST_F(GrammarCompilerTest, EndsOnlyWhereTheGrammarDoes) {
  GrammarMatcher matcher(compile(Kind::kRegex, "ab|abc"));
  EXPECT_TRUE(matcher.allows('a'));
  EXPECT_FALSE(matcher.allows('b'));
  EXPECT_FALSE(matcher.allows(ByteTokenizer::kEnd));
  EXPECT_FALSE(matcher.accept('b'));
  ASSERT_TRUE(matcher.accept('a'));
  EXPECT_FALSE(matcher.allows(ByteTokenizer::kEnd));
  ASSERT_TRUE(matcher.accept('b'));
  EXPECT_TRUE(matcher.allows(ByteTokenizer::kEnd));
  EXPECT_FALSE(matcher.is_finished());
  GrammarMatcher ended = std::move(matcher);
  ASSERT_TRUE(ended.accept(ByteTokenizer::kEnd));
  EXPECT_TRUE(ended.has_ended());
  EXPECT_TRUE(ended.is_finished());
}

TEST_F(GrammarCompilerTest, IsFinishedWhereNothingCanFollow) {
  GrammarMatcher matcher(compile(Kind::kChoice, R"(["yes", "no"])"));
  for (char c : std::string("ye")) ASSERT_TRUE(matcher.accept(c));
  EXPECT_FALSE(matcher.is_finished());
  ASSERT_TRUE(matcher.accept('s'));
  EXPECT_TRUE(matcher.is_finished());
  EXPECT_FALSE(matcher.has_ended());
}

TEST_F(GrammarCompilerTest, AllowsNeitherSpecialNorUnknownTokens) {
  GrammarMatcher matcher(compile(Kind::kRegex, "[^x]*"));
  EXPECT_FALSE(matcher.allows(ByteTokenizer::kMark));
  for (int32_t id = tokenizer_.vocab_size(); id < tokenizer_.vocab_size() + 3; ++id)
    EXPECT_FALSE(matcher.allows(id));
  EXPECT_FALSE(matcher.allows('x'));
  EXPECT_TRUE(matcher.allows('y'));
}

TEST_F(GrammarCompilerTest, MakesJsonObjects) {
  for (const std::string& text : texts(Kind::kJsonObject, ""))
    EXPECT_TRUE(Json::parse(text, nullptr, false).is_object()) << text;
}

TEST_F(GrammarCompilerTest, HoldsObjectsToTheirSchema) {
  const std::string schema = R"({"type": "object", "required": ["b", "d"], "properties": {
    "a": {"type": "integer", "minimum": -5, "maximum": 1234},
    "b": {"type": ["string", "null"], "maxLength": 5},
    "c": {"enum": ["x", 1, null, {"k": [1.5]}]},
    "d": {"type": "array", "items": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
          "minItems": 1, "maxItems": 3}}})";
  bool has_seen_a = false;
  bool has_missed_a = false;
  for (const Json& value : values(schema)) {
    ASSERT_TRUE(value.is_object());
    ASSERT_TRUE(value.contains("b") && value.contains("d")) << value;
    EXPECT_LE(value.size(), 4u);
    (value.contains("a") ? has_seen_a : has_missed_a) = true;
    if (value.contains("a")) {
      ASSERT_TRUE(value["a"].is_number_integer());
      EXPECT_GE(value["a"], -5);
      EXPECT_LE(value["a"], 1234);
    }
    ASSERT_TRUE(value["b"].is_string() || value["b"].is_null());
    EXPECT_GE(value["d"].size(), 1u);
    EXPECT_LE(value["d"].size(), 3u);
    for (const Json& item : value["d"]) {
      EXPECT_GT(item, 0);
      EXPECT_LE(item, 1);
    }
  }
  EXPECT_TRUE(has_seen_a && has_missed_a);
}

TEST_F(GrammarCompilerTest, FollowsReferencesAndRecursion) {
  const std::string schema = R"({"$defs": {"node": {"type": "object", "required": ["value"],
    "properties": {"value": {"type": "boolean"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}},
    "$ref": "#/$defs/node"})";
  for (const Json& value : values(schema)) {
    for (const Json* node = &value; !node->is_null(); node = &(*node)["next"]) {
      ASSERT_TRUE((*node)["value"].is_boolean());
      if (!node->contains("next")) break;
    }
  }
}

TEST_F(GrammarCompilerTest, OtherPropertiesHaveOtherNames) {
  const std::string schema = R"({"type": "object", "properties": {"name": {"type": "integer"}},
    "additionalProperties": {"type": "boolean"}})";
  bool has_others = false;
  for (const Json& value : values(schema)) {
    for (const auto& [key, member] : value.items()) {
      EXPECT_EQ(member.is_boolean(), key != "name") << value;
      has_others = has_others || key != "name";
    }
  }
  EXPECT_TRUE(has_others);
}

TEST_F(GrammarCompilerTest, HoldsSchemasTogetherThatCanBe) {
  const std::string schema =
      R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
    "allOf": [{"properties": {"c": {"const": 3}}}, {"required": ["c"]}],
    "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})";
  for (const Json& value : values(schema)) {
    EXPECT_EQ(value["c"], 3);
    EXPECT_TRUE(value.contains("a") || value.contains("b")) << value;
  }
}

TEST_F(GrammarCompilerTest, TellsTheChoicesOfOneOfApart) {
  values(R"({"oneOf": [{"type": "string", "maxLength": 3}, {"type": "null"}, {"enum": [1, 2]}]})");
  values(R"({"oneOf": [
    {"type": "object", "properties": {"kind": {"const": "a"}, "x": {"type": "null"}}, "required": ["kind"]},
    {"type": "object", "properties": {"kind": {"enum": ["b", "c"]}}, "required": ["kind"]}]})");
  values(R"({"oneOf": [
    {"type": "object", "properties": {"x": {"type": "null"}}, "required": ["x"]},
    {"type": "object", "properties": {"y": {"type": "null"}}, "required": ["y"]}]})");
  EXPECT_NE(refusal(Kind::kJsonSchema, R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})")
                .find("oneOf"),
            std::string::npos);
}

TEST_F(GrammarCompilerTest, KeepsNumbersWithinTheirBounds) {
  struct Case {
    double low;
    double high;
  };

  for (const Case& bounds : {Case{0, 1}, {-1.5, -0.25}, {0.5, 0.7}, {-3, 1000}, {99.99, 100.01}}) {
    Json schema = {{"type", "number"}, {"minimum", bounds.low}, {"maximum", bounds.high}};
    for (const Json& value : values(schema.dump())) {
      EXPECT_GE(value, bounds.low);
      EXPECT_LE(value, bounds.high);
    }
  }
  for (const Case& bounds :
       {Case{0, 0}, {-10, 10}, {7, 123456789}, {-2147483648.0, 2147483647.0}}) {
    Json schema = {
        {"type", "integer"}, {"exclusiveMinimum", bounds.low - 1}, {"maximum", bounds.high}};
    for (const Json& value : values(schema.dump())) {
      EXPECT_TRUE(value.is_number_integer());
      EXPECT_GE(value, bounds.low);
      EXPECT_LE(value, bounds.high);
    }
  }
  for (const Json& value :
       values(R"({"type": "integer", "minimum": -20, "maximum": 70, "multipleOf": 7})"))
    EXPECT_EQ(value.get<int>() % 7, 0);
}

TEST_F(GrammarCompilerTest, MakesTextsThatTheExpressionMatches) {
  for (const char* pattern :
       {"[a-z]{2,5}", "(ab|cd)+x?", "\\d{3}-\\w+", "a.c", "[^a-z\\s]{4}", "\\S+@\\S+", "x\\.y\\[",
        "", "\\x41\\x42", "[\\D]{3}", "(?:a|b|)c*?", "\xC3\xA9+"}) {
    Regex reference("^(?:" + std::string(pattern) + ")$");
    for (const std::string& text : texts(Kind::kRegex, pattern)) {
      EXPECT_EQ(valid_utf8_prefix(text), text.size());
      TextRange match;
      bool matches = Regex::Matches(reference, text).next(match) || text.empty();
      EXPECT_TRUE(matches) << pattern << " made " << text;
    }
  }
}

TEST_F(GrammarCompilerTest, PatternsOfStringsMatchWhereTheySay) {
  for (const char* pattern :
       {"^a+$",    "^https://", "z$",     "mid",        "^(x|y)$",   "^a|b$",  "\\n",
        "^\"q\"$", ".",         ".+",     "\\S",        "[0-9]",     "[0-9]$", "^[0-9]",
        "a{2,5}",  "x*yz?",     "(a|)b+", "q*(r|s+)q*", "[^a]{2,}$", ".*k.*"}) {
    Regex reference(pattern);
    Json schema = {{"type", "string"}, {"pattern", pattern}};
    for (const Json& value : values(schema.dump())) {
      auto text = value.get<std::string>();
      TextRange match;
      EXPECT_TRUE(Regex::Matches(reference, text).next(match)) << pattern << " made " << text;
    }
  }
}

// Some match the empty text: then everything does.
TEST_F(GrammarCompilerTest, PatternsThatMatchEverythingAreNoCondition) {
  const std::string any = grammar_of({Kind::kJsonSchema, R"({"type": "string", "pattern": ""})"});
  for (const char* pattern : {".*", "x*", "^", "$", "^a*", "a*$", "(|a)+", "(a*)*b{0,3}"}) {
    Json schema = {{"type", "string"}, {"pattern", pattern}};
    EXPECT_EQ(grammar_of({Kind::kJsonSchema, schema.dump()}), any) << pattern;
  }
  for (const Json& value : values(R"({"type": "string", "pattern": "^$"})")) EXPECT_EQ(value, "");
}

TEST_F(GrammarCompilerTest, FreeTextWithTaggedParts) {
  const std::string tag = R"({"type": "structural_tag", "format": {"type": "triggered_tags",
    "triggers": ["<call>"], "tags": [{"type": "tag", "begin": "<call>", "end": "</call>",
      "content": {"type": "json_schema", "json_schema": {"type": "object", "required": ["n"],
        "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 4}}}}}]}})";
  GrammarMatcher matcher(compile(Kind::kStructuralTag, tag));
  EXPECT_TRUE(matcher.allows(ByteTokenizer::kEnd));
  for (char c : std::string("Well <call>{\"n\":")) ASSERT_TRUE(matcher.accept(c)) << c;
  EXPECT_FALSE(matcher.allows(ByteTokenizer::kEnd));
  EXPECT_FALSE(matcher.allows('5'));
  for (char c : std::string("4}</call> so")) ASSERT_TRUE(matcher.accept(c)) << c;
  EXPECT_TRUE(matcher.allows(ByteTokenizer::kEnd));
  EXPECT_NE(
      refusal(
          Kind::kStructuralTag,
          R"({"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {"not": {}}}})")
          .find("'not'"),
      std::string::npos);
}

TEST_F(GrammarCompilerTest, TaggedPartsAreOnlyThoseThatAreKnown) {
  auto refused = [&](const std::string& part) {
    return refusal(Kind::kStructuralTag, R"({"type":"structural_tag","format":)" + part + "}");
  };
  const std::string grammar = R"({"type":"grammar","grammar":"root ::= [a-z]{999999}"})";
  EXPECT_NE(refused(grammar).find("'grammar'"), std::string::npos);
  EXPECT_NE(refused(R"({"type":"or","elements":[{"type":"any_text"}]})").find("'any_text'"),
            std::string::npos);
  EXPECT_NE(
      refused(R"({"type":"tag","begin":"","end":"","content":)" + grammar + "}").find("'grammar'"),
      std::string::npos);
  EXPECT_NE(refused(R"({"type":"or","elements":7})").find("'elements'"), std::string::npos);
  EXPECT_NE(refused(R"({"type":"json_schema","json_schema":{"not":{}},"label":"tools[3] 'f'"})")
                .find("tools[3] 'f': "),
            std::string::npos);
}

TEST_F(GrammarCompilerTest, MayBeginBehindReasoning) {
  auto begins = OutputFormat::Begins::kAfterReasoning;
  const std::string tag = R"({"type":"structural_tag","format":{"type":"json_schema",)"
                          R"("json_schema":{"type":"integer","minimum":3,"maximum":4}}})";
  for (const OutputFormat& format :
       {OutputFormat{Kind::kRegex, "4|3", begins}, OutputFormat{Kind::kStructuralTag, tag, begins},
        OutputFormat{Kind::kChoice, R"(["4","3"])", begins}}) {
    auto grammar = GrammarCompiler(tokenizer_, tokenizer_.vocab_size()).compile(format);
    ASSERT_TRUE(grammar) << grammar.error().message;
    GrammarMatcher matcher(*grammar);
    for (char c : std::string("so {5 </th is </think>\n\n")) ASSERT_TRUE(matcher.accept(c)) << c;
    EXPECT_FALSE(matcher.allows('5'));
    EXPECT_FALSE(matcher.allows(ByteTokenizer::kEnd));
    EXPECT_TRUE(matcher.accept('4'));
    EXPECT_TRUE(matcher.allows(ByteTokenizer::kEnd));
  }
}

TEST_F(GrammarCompilerTest, FollowsGrammarsOfClients) {
  for (const std::string& text :
       texts(Kind::kEbnf, "root ::= \"a\" (b | [0-9]{2})\nb ::= \"(\" root \")\"\n"))
    EXPECT_EQ(text.front(), 'a');
  EXPECT_NE(refusal(Kind::kEbnf, "root ::= other\n").find("other"), std::string::npos);
  EXPECT_NE(refusal(Kind::kEbnf, "root ::= Token(5)\n").find("Token"), std::string::npos);
  EXPECT_NE(refusal(Kind::kEbnf, "root[max_tokens=5] ::= \"a\"\n").find("options"),
            std::string::npos);
  EXPECT_NE(refusal(Kind::kEbnf, "root ::= \"a\"{1,99999}\n").find("1024"), std::string::npos);
}

TEST_F(GrammarCompilerTest, SaysWhatCannotBeEnforced) {
  struct Case {
    const char* schema;
    const char* named;
  };

  for (
      const Case& refused : {
          Case{R"({"type": "array", "uniqueItems": true})", "'uniqueItems'"},
          {R"({"type": "array", "contains": {}})", "'contains'"},
          {R"({"properties": {"x": {"not": {"type": "null"}}}})", "at #/properties/x: 'not'"},
          {R"({"if": {}, "then": {}})", "'if'"},
          {R"({"dependentSchemas": {}})", "'dependentSchemas'"},
          {R"({"dependentRequired": {}})", "'dependentRequired'"},
          {R"({"propertyNames": {"pattern": "a"}})", "'propertyNames'"},
          {R"({"properties": {"a": {}}, "patternProperties": {"b": {}}})", "'patternProperties'"},
          {R"({"unevaluatedProperties": false})", "'unevaluatedProperties'"},
          {R"({"type": "number", "multipleOf": 0.1})", "'multipleOf'"},
          {R"({"type": "integer", "multipleOf": 7})", "'multipleOf'"},
          {R"({"type": "string", "format": "regex"})", "\"regex\""},
          {R"({"type": "string", "pattern": "a", "minLength": 3})", "'pattern'"},
          {R"x({"type": "string", "pattern": "(?=a)"})x", "(?"},
          {R"({"type": "string", "pattern": "a\\b"})", "\\b"},
          {R"({"type": "string", "minLength": 1000000})", "16384"},
          {R"({"allOf": [{"pattern": "a"}, {"pattern": "b"}]})", "'pattern'"},
          {R"({"allOf": [{"type": "null"}, {"type": "string"}]})", "'type'"},
          {R"({"const": [18446744073709551617]})", "64 bits"},
          {R"({"type": "string", "pattern": "^a+$", "format": "date"})", "'format'"},
          {R"({"$ref": "https://example.org/schema"})", "'$ref'"},
          {R"({"$ref": "#/$defs/missing"})", "'$ref'"},
          {R"({"$ref": "#"})", "'$ref'"},
          {R"({"type": "object", "minProperties": 3})", "'minProperties'"},
          {R"({"type": "strange"})", "'type'"},
          {R"({"type": "object", "properties": {"a": false}, "required": ["a"]})", "no text"},
          {R"({"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}}, "$ref": "#/$defs/a"})",
           "no text"},
          {"[1]", "neither"},
          {"{", "not JSON"},
      }) {
    EXPECT_NE(refusal(Kind::kJsonSchema, refused.schema).find(refused.named), std::string::npos)
        << refused.schema << ": " << refusal(Kind::kJsonSchema, refused.schema);
  }
}

TEST_F(GrammarCompilerTest, TheSameFormatIsCompiledOnce) {
  auto first = compile(Kind::kRegex, "[a-f]+");
  EXPECT_EQ(compile(Kind::kRegex, "[a-f]+"), first);
  EXPECT_NE(compile(Kind::kRegex, "[a-g]+"), first);
}

TEST_F(GrammarCompilerTest, TenantsDoNotSeeWhatOthersHaveCompiled) {
  const OutputFormat format{Kind::kRegex, "[a-f]+"};
  auto first = compiler_.compile(format, "anna").take_or_throw();
  EXPECT_EQ(compiler_.compile(format, "anna").take_or_throw(), first);
  EXPECT_NE(compiler_.compile(format, "bert").take_or_throw(), first);
  EXPECT_NE(compiler_.compile(format).take_or_throw(), first);
}

// Those that are only kept make room; those in use stay, and what has no room is not the client's
// fault.
TEST_F(GrammarCompilerTest, GrammarsTakeSoMuchTogether) {
  auto format = [](int number) {
    return OutputFormat{Kind::kRegex, fmt::format("[a-f]{{{}}}", number)};
  };
  size_t each = GrammarCompiler(tokenizer_, tokenizer_.vocab_size())
                    .compile(format(10))
                    .take_or_throw()
                    ->bytes();
  GrammarCompiler compiler(tokenizer_, tokenizer_.vocab_size(), 4 * each);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(compiler.compile(format(10 - i % 10))) << i;
  std::vector<std::shared_ptr<const CompiledGrammar>> used;
  Result<std::shared_ptr<const CompiledGrammar>> next = compiler.compile(format(11));
  for (int i = 12; next && i < 40; ++i) {
    used.push_back(*next);
    next = compiler.compile(format(i));
  }
  ASSERT_FALSE(next);
  EXPECT_EQ(next.error().code, ErrorCode::kExhausted);
  EXPECT_GE(used.size(), 2u);
  EXPECT_LE(used.size(), 4u);
  EXPECT_TRUE(compiler.compile(format(11))) << "what is in use has its room";
  used.clear();
  EXPECT_TRUE(compiler.compile(format(50)));
}

TEST_F(GrammarCompilerTest, RefusesWhatMayGrowWithoutBounds) {
  std::string leaf = "a ::= \"0\"";
  std::string root = "root ::= a \"0\"";
  for (int i = 0; i < 600; ++i) {
    leaf += fmt::format(" | \"{}\"", i);
    root += fmt::format(" | a \"{}\"", i);
  }
  EXPECT_NE(refusal(Kind::kEbnf, root + "\n" + leaf + "\n").find("alternatives"),
            std::string::npos);
  EXPECT_NE(refusal(Kind::kRegex, "[a-").find("without a ]"), std::string::npos);
  std::string nested = "a";
  for (int i = 0; i < 7; ++i) nested = "(" + nested + "){1024}";
  EXPECT_NE(refusal(Kind::kRegex, nested).find("states"), std::string::npos);
}

TEST_F(GrammarCompilerTest, RefusesChoicesThatMayHoldTogetherAndBoundsThatAreRounded) {
  EXPECT_NE(refusal(Kind::kJsonSchema,
                    R"({"oneOf": [{"type": "object", "properties": {"x": {"type": "null"}},
                        "required": ["x"], "allOf": [{"properties": {"y": {"type": "null"}}}]},
                       {"type": "object", "properties": {"y": {"type": "null"}}, "required": ["y"]}]})"),
            "");
  EXPECT_NE(refusal(Kind::kJsonSchema, R"({"type": "integer", "minimum": 9007199254740993})")
                .find("2^53"),
            std::string::npos);
  EXPECT_NE(
      refusal(
          Kind::kJsonSchema,
          R"({"oneOf": [{"type": "object", "required": ["k"], "properties": {"k": {"const": 1}}},
                       {"type": "object", "required": ["k"], "properties": ["k"]}]})"),
      "");
  // The order of keys makes no other value.
  for (const char* schema :
       {R"({"oneOf": [{"const": {"a": 1, "b": 2}}, {"const": {"b": 2, "a": 1}}]})",
        R"({"oneOf": [{"const": [{"a": 1, "b": 2}]}, {"enum": [3, [{"b": 2, "a": 1}]]}]})"})
    EXPECT_NE(refusal(Kind::kJsonSchema, schema).find("may both hold"), std::string::npos);
}

TEST_F(GrammarCompilerTest, NoTenantFindsWhatAnotherHasCompiled) {
  ByteTokenizer tokenizer;
  GrammarCompiler compiler(tokenizer, tokenizer.vocab_size());
  ASSERT_TRUE(compiler.compile({Kind::kEbnf, "root ::= \"a\"\n"}, "anna g"));
  EXPECT_FALSE(compiler.compile({Kind::kEbnf, " groot ::= \"a\"\n"}, "anna"));
}

TEST_F(GrammarCompilerTest, TokensBeyondTheModelsAreLeftOut) {
  ByteTokenizer tokenizer;
  GrammarCompiler compiler(tokenizer, tokenizer.vocab_size() - 1);
  EXPECT_TRUE(compiler.compile({Kind::kRegex, "[a-f]+"}));
}

}  // namespace
}  // namespace droidspeak
