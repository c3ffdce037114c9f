// The template language itself, compared with Python's jinja2, and its limits.
#include <cstdlib>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "text/chat_template.h"
#include "text/jinja/characters.h"
#include "text/jinja/lexer.h"
#include "text/jinja/print.h"

namespace droidspeak {

namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

const std::filesystem::path kFolder =
    std::filesystem::path(DROIDSPEAK_SOURCE_DIR) / "tests" / "data" / "chat_templates";

std::string render(const std::string& source, const std::string& variables = "") {
  setenv("TZ", "UTC", 1);
  tzset();
  ChatTemplateInput input;
  input.extra_json = variables;
  input.now = std::chrono::system_clock::from_time_t(1730815629);  // 2024-11-05 14:07:09
  return ChatTemplate(source).render(input);
}

std::string failure_of(const std::string& source) {
  try {
    render(source);
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), ErrorCode::kInvalidArgument);
    return failure.what();
  }
  return "rendered";
}

std::string repeated(std::string_view text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

}  // namespace

TEST(Jinja, GivesWhatPythonGivesForEverySnippet) {
  Json goldens = Json::parse(read_file(kFolder / "snippet_goldens.json"));
  std::string variables = Json::parse(read_file(kFolder / "snippets.json")).at("variables").dump();
  ASSERT_GT(goldens.size(), 200U);
  for (const Json& golden : goldens) {
    std::string source = golden.at("source");
    SCOPED_TRACE(source);
    try {
      std::string output = render(source, variables);
      if (golden.contains("error")) {
        ADD_FAILURE() << "should fail with " << golden.at("error") << ", gave " << output;
      } else {
        EXPECT_EQ(output, golden.at("output").get<std::string>());
      }
    } catch (const Failure& failure) {
      EXPECT_TRUE(golden.contains("error")) << failure.what();
    }
  }
}

TEST(Jinja, ReportsTheLineInsideAMultiLineTemplate) {
  EXPECT_THAT(failure_of("{% for i in [1] %}\n\n  {{ i.x.y }}\n{% endfor %}"),
              HasSubstr("line 3: "));
  EXPECT_THAT(failure_of("{% macro f() %}\n{{ 1 / 0 }}\n{% endmacro %}\n{{ f() }}"),
              HasSubstr("line 2: division"));
  EXPECT_THAT(failure_of("{{ 1 }}\n{{ 'a' - 1 }}"),
              HasSubstr("line 2: unsupported operands for -: str and int"));
}

TEST(Jinja, RefusesEndlessWork) {
  std::string loops =
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
  EXPECT_THAT(failure_of(loops), HasSubstr("too much"));
  std::string calls =
      "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}";
  EXPECT_THAT(failure_of(calls), HasSubstr("too much work"));
  EXPECT_THAT(failure_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
              HasSubstr("nest too deep"));
  EXPECT_THAT(failure_of("{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}"),
              HasSubstr("nest too deep"));
}

TEST(Jinja, RefusesToFillMemory) {
  EXPECT_THAT(failure_of("{{ 'x' * 99999999999 }}"), HasSubstr("too much"));
  EXPECT_THAT(failure_of("{{ [1] * 99999999999 }}"), HasSubstr("too much"));
  std::string doubling =
      "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s OP n.s %}{% endfor "
      "%}";
  for (const std::string operation : {"+", "~"}) {
    std::string source = doubling;
    source.replace(source.find("OP"), 2, operation);
    EXPECT_THAT(failure_of(source), HasSubstr("too much"));
  }
  EXPECT_THAT(failure_of("{{ ('a' * 100000)|replace('a', 'b' * 100000) }}"), HasSubstr("too much"));
  EXPECT_THAT(failure_of("{{ [[1]]|tojson(indent=99999999) }}"), HasSubstr("indent"));
  EXPECT_THAT(failure_of("{% for i in range(100000) %}{{ 'x' * 10000 }}{% endfor %}"),
              HasSubstr("too much"));
}

TEST(Jinja, RefusesValuesThatContainThemselvesOrNestTooDeep) {
  EXPECT_THAT(failure_of("{% set n = namespace() %}{% set n.n = n %}{{ n }}"),
              HasSubstr("too deep"));
  EXPECT_THAT(failure_of("{% set n = namespace(l=[]) %}{% for i in range(1000) %}{% set n.l = "
                         "[n.l] %}{% endfor %}"),
              HasSubstr("nest deeper"));
  // 2^60 items when written out.
  std::string wide =
      "{% set n = namespace(l=[1]) %}{% for i in range(60) %}{% set n.l = [n.l, n.l] %}{% endfor "
      "%}";
  EXPECT_THAT(failure_of(wide + "{{ n.l }}"), HasSubstr("too much"));
  EXPECT_THAT(failure_of(wide + "{{ n.l|tojson }}"), HasSubstr("too much"));
  EXPECT_THAT(
      failure_of(wide +
                 "{% set m = namespace(l=[1]) %}{% for i in range(60) %}{% set m.l = [m.l, m.l] %}"
                 "{% endfor %}{{ n.l == m.l }}"),
      HasSubstr("too much"));
}

TEST(Jinja, RefusesSourcesThatNestTooDeep) {
  EXPECT_THAT(failure_of("{{ " + repeated("(", 100000) + "1" + repeated(")", 100000) + " }}"),
              HasSubstr("nests deeper"));
  EXPECT_THAT(failure_of("{{ " + repeated("[", 100000) + repeated("]", 100000) + " }}"),
              HasSubstr("nests deeper"));
  EXPECT_THAT(failure_of("{{ " + repeated("-", 100000) + "1 }}"), HasSubstr("nests deeper"));
  EXPECT_THAT(failure_of("{{ " + repeated("not ", 100000) + "1 }}"), HasSubstr("nests deeper"));
  EXPECT_THAT(failure_of(repeated("{% if 1 %}", 100000)), HasSubstr("nests deeper"));
  EXPECT_THAT(failure_of("{{ 1" + repeated("+1", 100000) + " }}"),
              HasSubstr("operations in a row"));
  EXPECT_THAT(failure_of("{{ x" + repeated(".a", 100000) + " }}"),
              HasSubstr("operations in a row"));
  EXPECT_THAT(failure_of("{{ x" + repeated("|trim", 100000) + " }}"),
              HasSubstr("operations in a row"));
  EXPECT_THAT(failure_of("{{ 1" + repeated(" if 1", 100000) + " }}"),
              HasSubstr("operations in a row"));
  EXPECT_THAT(failure_of("{% set " + repeated("(", 100000) + repeated(")", 100000) + " = 1 %}"),
              HasSubstr("nests deeper"));
}

TEST(Jinja, FreesValuesThatHoldOnToEachOther) {
  EXPECT_EQ(render("{% set n = namespace() %}{% set n.me = n %}{% set n.list = [n] %}"
                   "{% macro f() %}{{ n.me is defined }}{% endmacro %}{% set n.f = f %}{{ f() }}"),
            "True");
  EXPECT_EQ(
      render(
          "{% set n = namespace(l=none) %}{% for i in [1, 2] %}{% set n.l = loop %}{% endfor %}"),
      "");
  EXPECT_THAT(failure_of("{% for i in [1] %}{{ loop.changed(loop) }}{% endfor %}"),
              HasSubstr("not supported"));
}

TEST(Jinja, KeepsArithmeticWithin64Bits) {
  EXPECT_THAT(failure_of("{{ 9223372036854775807 + 1 }}"), HasSubstr("64 bits"));
  EXPECT_THAT(failure_of("{{ 9223372036854775808 }}"), HasSubstr("64 bits"));
  EXPECT_THAT(failure_of("{{ 10 ** 30 }}"), HasSubstr("64 bits"));
  EXPECT_THAT(failure_of("{{ (-9223372036854775807 - 1) // -1 }}"), HasSubstr("64 bits"));
  EXPECT_THAT(failure_of("{{ -(-9223372036854775807 - 1) }}"), HasSubstr("64 bits"));
  EXPECT_EQ(render("{{ (-9223372036854775807 - 1) % -1 }} {{ "
                   "'abc'[:9223372036854775807:9223372036854775807] }}"),
            "0 a");
}

TEST(Jinja, PassesBytesThatAreNotUtf8Through) {
  EXPECT_EQ(render("{{ '\xff\xc3' + 'a' }}|{{ '\xff'|length }}|{{ '\xff|'[::-1] }}"),
            "\xff\xc3"
            "a|1||\xff");
}

TEST(Characters, StripsUnicodeSpace) {
  EXPECT_EQ(jinja::strip("\u00a0\u3000 a\u2003\n", jinja::Side::kBoth), "a");
  EXPECT_EQ(jinja::strip("\xff a \xff", jinja::Side::kBoth), "\xff a \xff");
}

TEST(Characters, FindsInLinearTimeWhatTheObviousSearchFinds) {
  std::string text = repeated("aab", 50) + "aaac" + repeated("ab", 50);
  for (const std::string wanted : {"aaac", "ab", "b", "", "cab", "zz", "bb"}) {
    for (size_t from = 0; from <= text.size() + 1; from += 7) {
      EXPECT_EQ(jinja::find_text(text, wanted, from), text.find(wanted, from))
          << wanted << " from " << from;
    }
  }
}

TEST(Printing, WritesFloatsAsPython) {
  EXPECT_EQ(jinja::format_float(1e22), "1e+22");
  EXPECT_EQ(jinja::format_float(-0.0), "-0.0");
  EXPECT_EQ(jinja::format_float(0.0001), "0.0001");
  EXPECT_EQ(jinja::format_float(1.5e-5), "1.5e-05");
  EXPECT_EQ(jinja::format_float(9007199254740993.0), "9007199254740992.0");
}

}  // namespace droidspeak
