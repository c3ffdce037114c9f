// What strangers send to keep a server busy: refused, or compiled to something small.
#include <algorithm>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "grammar/grammar_test_support.h"

namespace droidspeak {
namespace {

using Json = nlohmann::json;
using Kind = OutputFormat::Kind;

std::string nested(const std::string& open,
                   const std::string& inner,
                   const std::string& close,
                   int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += open;
  text += inner;
  for (int i = 0; i < times; ++i) text += close;
  return text;
}

// `num` definitions, each of which names the next one twice.
std::string doubling(int num, const char* keyword) {
  Json definitions;
  for (int i = 0; i < num; ++i) {
    Json next = {{"$ref", "#/$defs/d" + std::to_string(i + 1)}};
    definitions["d" + std::to_string(i)] = {{keyword, {next, next}}};
  }
  definitions["d" + std::to_string(num)] = {{"type", "null"}};
  return Json{{"$defs", definitions}, {"$ref", "#/$defs/d0"}}.dump();
}

Json wide_object(int num, const Json& member) {
  Json properties = Json::object();
  for (int i = 0; i < num; ++i) properties["property" + std::to_string(i)] = member;
  return {{"type", "object"}, {"properties", properties}};
}

std::vector<OutputFormat> hostile_formats() {
  std::vector<OutputFormat> all;
  auto schema = [&](const std::string& text) { all.push_back({Kind::kJsonSchema, text}); };
  for (int depth : {30, 63, 64, 1000, 100000}) {
    schema(nested(R"({"items":)", "{}", "}", depth));
    schema(nested(R"({"anyOf":[)", "{}", "]}", depth));
    schema(nested(R"({"allOf":[)", "{}", "]}", depth));
    schema(nested(R"({"properties":{"a":)", "true", "}}", depth));
    schema(nested("[", "", "]", depth));
  }
  for (int num : {20, 40, 200}) {
    schema(doubling(num, "anyOf"));
    schema(doubling(num, "oneOf"));
    schema(doubling(num, "allOf"));
    schema(doubling(num, "prefixItems"));
  }
  for (int num : {1000, 8000, 50000}) schema(wide_object(num, {{"type", "string"}}).dump());
  schema(wide_object(300, {{"type", "string"}, {"minLength", 100}, {"maxLength", 16000}}).dump());
  schema(wide_object(300, {{"type", "string"}, {"pattern", "([a-z]{50}){20}"}}).dump());
  Json many = Json::array();
  for (int i = 0; i < 3000; ++i) many.push_back({{"const", i}});
  schema(Json{{"oneOf", many}}.dump());
  Json big = wide_object(500, true);
  big["anyOf"] = many;
  schema(big.dump());
  schema(Json{{"enum", std::vector<std::string>(5000, std::string(20, 'x'))}}.dump());
  schema(Json{{"const", std::string(200000, 'x')}}.dump());
  schema(
      R"({"type":"array","minItems":4000,"maxItems":4000,"items":{"type":"array","minItems":4000,"items":{}}})");
  schema(R"({"type":"integer","minimum":-1e300,"maximum":1e300})");
  schema(R"({"type":"number","minimum":1e-300})");
  schema(R"({"type":"integer","minimum":0,"maximum":1e18,"multipleOf":3})");
  schema(R"({"type":"string","minLength":-1})");
  schema(R"({"type":"string","minLength":1e99})");
  schema(R"({"$ref":"#/$ref"})");
  schema(R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})");
  schema(R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})");
  schema(R"({"allOf":[{"$ref":"#"},{"type":"null"}]})");
  schema(R"({"type":"object","properties":{")" + std::string(100000, 'k') +
         R"(":{}}, "additionalProperties": true})");
  schema(std::string(300000, ' ') + "{}");
  schema("\xff\xfe");
  auto regex = [&](const std::string& text) { all.push_back({Kind::kRegex, text}); };
  regex("((((a{100}){100}){100}){100})");
  regex("(a*)*b");
  regex("((a|a)*)*");
  regex("(a|b|ab)*c{1,1000}");
  regex(nested("(", "a", ")", 5000));
  regex(std::string(100000, 'a'));
  regex("[\\u0000-\\uffff]{1000}");
  regex("()*");
  regex("(|a)+");
  auto ebnf = [&](const std::string& text) { all.push_back({Kind::kEbnf, text}); };
  ebnf("root ::= root root | \"a\"\n");
  ebnf("root ::= root\n");
  ebnf("root ::= (\"\")*\n");
  ebnf("root ::= \"a\"{1000}{1000}\n");
  ebnf(nested("root ::= ", "\"a\"", "", 1) + nested("(", "\"a\"", ")", 10000));
  ebnf("root ::= [^]\n" + std::string(100000, '#'));
  std::string chain = "root::=z0\n";
  for (int i = 0; i < 4000; ++i) chain += fmt::format("z{}::=z{}\n", i, i + 1);
  ebnf(chain + "z4000::=\"a\"\n");
  ebnf("root ::= " + std::string(1000, ')') + std::string(1000, '('));
  ebnf("root ::= \"");
  ebnf("root ::= [");
  ebnf("root ::= \"a\"{");
  ebnf("root");
  ebnf("");
  all.push_back({Kind::kChoice, "[]"});
  all.push_back({Kind::kChoice, "[1]"});
  all.push_back(
      {Kind::kStructuralTag, nested(R"({"type":"sequence","elements":[)", "", "]}", 1000)});
  all.push_back(
      {Kind::kStructuralTag, R"({"type":"structural_tag","format":{"type":"nonsense"}})"});
  return all;
}

TEST(HostileFormats, AreRefusedOrSmall) {
  ByteTokenizer tokenizer;
  GrammarCompiler compiler(tokenizer, tokenizer.vocab_size());
  std::vector<OutputFormat> formats = hostile_formats();
  ASSERT_GE(formats.size(), 64u);
  int num_refused = 0;
  for (const OutputFormat& format : formats) {
    SCOPED_TRACE(format.text.substr(0, 80));
    auto grammar = compiler.compile(format);
    if (!grammar) {
      ++num_refused;
      EXPECT_LT(grammar.error().message.size(), 2000u);
      continue;
    }
    EXPECT_LT((*grammar)->bytes(), size_t{64} << 20);
    GrammarMatcher matcher(*grammar);
    for (int i = 0; i < 50 && !matcher.is_finished(); ++i) {
      int32_t token = 0;
      while (token < tokenizer.vocab_size() && !matcher.allows(token)) ++token;
      if (token == tokenizer.vocab_size() || !matcher.accept(token)) break;
    }
    EXPECT_FALSE(matcher.is_too_slow());
  }
  EXPECT_GT(num_refused, 20);
  EXPECT_LT(num_refused, static_cast<int>(formats.size()) - 10);
}

// Grammars with so many ways to read one text that a parser would try them for ever.
std::vector<std::string> ambiguous_grammars() {
  std::string twice = "root ::= r0\n";
  std::string optional = "root ::= r0\n";
  for (int i = 0; i < 60; ++i) {
    twice += fmt::format("r{} ::= r{} r{} | \"a\"\n", i, i + 1, i + 1);
    optional += fmt::format("r{} ::= r{}? r{}? [a-z ]?\n", i, i + 1, i + 1);
  }
  std::string maybe = "root ::=";
  for (int i = 0; i < 1000; ++i) maybe += " \"a\"?";
  std::string too_many = maybe + " \"a\"?";
  std::string stars = "root ::=";
  for (int i = 0; i < 6000; ++i) stars += " [a-z ]*";
  return {twice + "r60 ::= \"b\" | \"\"\n",
          optional + "r60 ::= \"b\" | \"\"\n",
          maybe,
          too_many,
          stars,
          "root ::= ((([a-z ]{0,900}){0,900}){0,900}){0,900}\n",
          "root ::= root root root | \"a\" | \"b\" | \"\"\n",
          "root ::= ((\"a\"*)*)*\n"};
}

TEST(HostileFormats, WithManyReadingsAreRefusedOrGivenUp) {
  ByteTokenizer tokenizer;
  GrammarCompiler compiler(tokenizer, tokenizer.vocab_size());
  for (const std::string& text : ambiguous_grammars()) {
    SCOPED_TRACE(text.substr(0, 60));
    auto grammar = compiler.compile({Kind::kEbnf, text});
    if (!grammar) {
      const std::string& reason = grammar.error().message;
      bool is_said = reason.find("ways") != std::string::npos ||
                     reason.find("may be left out") != std::string::npos;
      EXPECT_TRUE(is_said) << reason;
      continue;
    }
    GrammarMatcher matcher(*grammar);
    int num_tokens = 0;
    while (num_tokens < 5000 && matcher.accept('a')) ++num_tokens;
    EXPECT_TRUE(matcher.is_too_slow()) << num_tokens;
  }
}

// What stands in front of two ways to go on is read once: read twice, 3000 items took 14 s.
TEST(HostileFormats, StateThePrefixOfAnArrayOnce) {
  constexpr size_t kItems = 300;
  Json schema = {{"prefixItems", Json(kItems, Json{{"type", "integer"}})}};
  const std::string grammar = grammar_of({Kind::kJsonSchema, schema.dump()});
  size_t num_commas = 0;
  for (size_t at = 0; (at = grammar.find(R"(",")", at)) != std::string::npos; ++at) ++num_commas;
  EXPECT_GE(num_commas, kItems - 1);
  EXPECT_LT(num_commas, kItems + 50);
}

// 8000 took 744 MB before they were refused.
TEST(HostileFormats, TakeLittleForEachItemOfAnArray) {
  ByteTokenizer tokenizer;
  GrammarCompiler compiler(tokenizer, tokenizer.vocab_size());
  auto bytes_of = [&](size_t items) {
    Json schema = {{"prefixItems", Json(items, Json{{"type", "null"}})}, {"items", false}};
    auto grammar = compiler.compile({Kind::kJsonSchema, schema.dump()});
    EXPECT_TRUE(grammar) << grammar.error().message;
    return grammar ? (*grammar)->bytes() : 0;
  };
  EXPECT_LT(bytes_of(2000), 6 * bytes_of(500));
}

// 20,000 took minutes.
TEST(HostileFormats, WithLongRowsOfRulesAreRefused) {
  ByteTokenizer tokenizer;
  GrammarCompiler compiler(tokenizer, tokenizer.vocab_size());
  auto refusal = [&](const std::string& body) {
    auto grammar = compiler.compile({Kind::kEbnf, "root ::= " + body + "\nx ::= \"a\"\n"});
    return grammar ? "" : grammar.error().message;
  };
  const std::string half = nested("x ", "", "", 256);
  EXPECT_EQ(refusal(half + half), "");
  EXPECT_EQ(refusal(half + half + "| " + half), "");
  EXPECT_NE(refusal(half + half + "x"), "");
  EXPECT_NE(refusal(half + "\n  " + half + "x"), "") << "on several lines";
  EXPECT_NE(refusal(half + "(\"b\" | \"c\") " + half + "x"), "") << "around a choice";
  std::string many = "x";
  for (int i = 0; i < 32; ++i) many += " | " + half;
  EXPECT_NE(refusal(many), "") << "in all";
}

size_t resident_bytes() {
  size_t all = 0;
  size_t resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

// Each choice of a request follows the grammar for itself: of 64 it was 1.6 GB.
TEST(HostileFormats, TakeLittleForEachWhoFollowsThem) {
  ByteTokenizer tokenizer;
  GrammarCompiler compiler(tokenizer, tokenizer.vocab_size());
  Json choices = Json::array();
  for (int i = 0; i < 600; ++i) choices.push_back({{"type", "array"}, {"items", {{"const", i}}}});
  auto grammar = compiler.compile({Kind::kJsonSchema, Json{{"anyOf", choices}}.dump()});
  ASSERT_TRUE(grammar) << grammar.error().message;
  const size_t before = resident_bytes();
  std::vector<GrammarMatcher> followers;
  for (int i = 0; i < 64; ++i) {
    followers.emplace_back(*grammar);
    ASSERT_TRUE(followers.back().accept('['));
    ASSERT_TRUE(followers.back().allows('7'));
  }
  EXPECT_LT(resident_bytes(), before + (size_t{128} << 20));
}

}  // namespace
}  // namespace droidspeak
