// Keywords that must hold together: of several schemas, of one string, of one number.
#include <cmath>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/regex.h"
#include "base/utf8.h"
#include "grammar/grammar_test_support.h"
#include "grammar/grammar_text.h"
#include "grammar/pattern_length.h"

namespace droidspeak {
namespace {

using Json = nlohmann::json;

// Some values that the schema's grammar makes.
std::vector<Json> values(const std::string& schema) {
  ByteTokenizer tokenizer;
  GrammarCompiler compiler(tokenizer, tokenizer.vocab_size());
  auto grammar = compiler.compile({OutputFormat::Kind::kJsonSchema, schema});
  EXPECT_TRUE(grammar) << schema << ": " << (grammar ? "" : grammar.error().message);
  std::vector<Json> result;
  for (uint32_t seed = 0; grammar && seed < 40; ++seed) {
    if (auto text = random_text(*grammar, seed)) result.push_back(Json::parse(*text));
  }
  EXPECT_GT(result.size(), 20u) << schema;
  return result;
}

size_t num_characters(const std::string& text) {
  size_t count = 0;
  for (size_t i = 0; i < text.size(); i += utf8_char_at(text, i).bytes) ++count;
  return count;
}

TEST(CombinedSchemas, TheTighterBoundCounts) {
  for (const Json& value : values(R"({"allOf": [{"type": "number", "minimum": 3, "maximum": 900},
        {"type": ["integer", "null"], "minimum": 7.5}, {"maximum": 20, "exclusiveMaximum": 20}]})")) {
    ASSERT_TRUE(value.is_number_integer()) << value;
    EXPECT_GE(value, 8);
    EXPECT_LT(value, 20);
  }
  for (const Json& value :
       values(R"({"enum": ["a", 1, null, "b"], "allOf": [{"enum": ["b", 1.0]}]})"))
    EXPECT_TRUE(value == "b" || value == 1) << value;
}

TEST(CombinedSchemas, APropertyHoldsAllThatIsSaidOfIt) {
  for (const Json& value : values(R"({"$defs": {"pet": {"type": "object", "required": ["kind"],
        "properties": {"kind": {"type": "string"}, "age": {"type": "integer", "minimum": 0}, "no": {}}}},
        "allOf": [{"$ref": "#/$defs/pet"}, {"required": ["age"],
          "properties": {"kind": {"const": "cat"}, "age": {"maximum": 30}, "no": false}}]})")) {
    EXPECT_EQ(value["kind"], "cat");
    EXPECT_GE(value["age"], 0);
    EXPECT_LE(value["age"], 30);
    EXPECT_FALSE(value.contains("no"));
  }
}

TEST(CombinedSchemas, ChoicesAreToldApartByWhatTheirPartsSay) {
  for (const Json& value : values(R"({"$defs": {"pet": {"type": "object", "required": ["kind"],
        "properties": {"kind": {"type": "string"}}}},
        "oneOf": [{"allOf": [{"$ref": "#/$defs/pet"}, {"properties": {"kind": {"const": "cat"}}}]},
                  {"allOf": [{"$ref": "#/$defs/pet"}, {"properties": {"kind": {"enum": ["dog", "cow"]}}}]}]})"))
    EXPECT_TRUE(value["kind"] == "cat" || value["kind"] == "dog" || value["kind"] == "cow");
}

TEST(CombinedSchemas, PatternsHaveTheirLength) {
  struct Case {
    const char* pattern;
    size_t low;
    size_t high;
  };

  for (const Case& test : {Case{"^[a-z]+$", 3, 5},
                           {"^[a-z\\]\xC3\xA9]*$", 2, 2},
                           {"^\\w{2,}$", 0, 3},
                           {"^[A-Z]{2}(-[0-9]{1,3})?$", 2, 6},
                           {"^.{1,4}$", 2, 9}}) {
    Json schema = {{"type", "string"},
                   {"pattern", test.pattern},
                   {"minLength", test.low},
                   {"maxLength", test.high}};
    Regex reference(test.pattern);
    for (const Json& value : values(schema.dump())) {
      auto text = value.get<std::string>();
      TextRange match;
      EXPECT_TRUE(Regex::Matches(reference, text).next(match)) << test.pattern << " made " << text;
      EXPECT_GE(num_characters(text), test.low) << test.pattern;
      EXPECT_LE(num_characters(text), test.high) << test.pattern;
    }
  }
  values(R"({"type": "string", "format": "uuid", "minLength": 36, "maxLength": 36})");
  values(R"({"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083})");
}

TEST(CombinedSchemas, OnlyPatternsOfOneClassAreGivenALength) {
  EXPECT_EQ(with_length("^[a-z]+$", 3, 5), "^[a-z]{3,5}$");
  EXPECT_EQ(with_length("^[^\\]]*$", 0, kUnbounded), "^[^\\]]{0,}$");
  EXPECT_EQ(with_length("^\\d{2,4}$", 3, 9), "^\\d{3,4}$");
  EXPECT_EQ(with_length("^.$", 0, 1), "^.{1,1}$");
  for (const char* other :
       {"[a-z]+", "^[a-z]+", "[a-z]+$", "^ab+$", "^[a-z]+?$", "^(a)+$", "^[a]{x}$", "^[a]{2,1}$",
        "^[a", "^\\b$", "^$", "^[a]+[b]+$", "^[[:alpha:]]+$", "^a|b$"})
    EXPECT_EQ(with_length(other, 0, 9), std::nullopt) << other;
  EXPECT_EQ(with_length("^[a]{3}$", 4, 9), std::nullopt);
}

TEST(CombinedSchemas, NamesThatMayBeAnythingAreNoCondition) {
  for (const Json& value : values(R"({"type": "object", "propertyNames": {"type": "string"},
        "additionalProperties": {"type": "boolean"}})"))
    EXPECT_TRUE(value.is_object());
}

// As doubles, which is how most who read an answer hold its numbers.
TEST(CombinedSchemas, NumbersStayInsideWhateverTheirDigits) {
  struct Case {
    double low;
    double high;
  };

  for (const Case& bounds : {Case{1e-6, 1e12},
                             {-1e12, -1e-6},
                             {0.29, 0.31},
                             {1e-9, 1e-8},
                             {1.0 / 3, 2.0 / 3},
                             {0.1 + 0.2, 0.35},
                             {-1.7976931348623157e308, 1e15},
                             {999999999999.5, 1e18}}) {
    Json schema = {
        {"type", "number"}, {"exclusiveMinimum", bounds.low}, {"exclusiveMaximum", bounds.high}};
    for (const Json& value : values(schema.dump())) {
      EXPECT_GT(value.get<double>(), bounds.low) << value;
      EXPECT_LT(value.get<double>(), bounds.high) << value;
    }
  }
  for (const Json& value :
       values(R"({"type": "integer", "minimum": 0, "maximum": 9223372036854775807})"))
    EXPECT_GE(value, 0);
}

}  // namespace
}  // namespace droidspeak
