// The table of fields in docs/http_api.md against the readers of requests, both ways.
#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "server/anthropic/messages_request.h"
#include "server/openai/requests.h"
#include "server/openai/responses_request.h"

namespace droidspeak {
namespace {

using Json = nlohmann::json;

std::filesystem::path source(const std::string& path) {
  return std::filesystem::path(DROIDSPEAK_SOURCE_DIR) / path;
}

std::string document() {
  return read_file(source("docs/http_api.md"));
}

template <class Request>
std::string param_of(const ApiResult<Request>& request) {
  return request ? "" : request.error().param;
}

// What is wrong with a body: the field's name, "" when nothing is.
std::string wrong_field(const std::string& call, const Json& body) {
  if (call == "/v1/chat/completions") return param_of(openai::parse_chat_request(body.dump()));
  if (call == "/v1/completions") return param_of(openai::parse_completion_request(body.dump()));
  if (call == "/v1/responses") return param_of(openai::parse_responses_request(body.dump()));
  return param_of(anthropic::parse_messages_request(body.dump()));
}

const std::map<std::string, Json>& bodies() {
  static const Json kMessages = Json::parse(R"([{"role": "user", "content": "hi"}])");
  static const std::map<std::string, Json> kBodies = {
      {"/v1/chat/completions", {{"model", "m"}, {"messages", kMessages}}},
      {"/v1/completions", {{"model", "m"}, {"prompt", "hi"}}},
      {"/v1/responses", {{"model", "m"}, {"input", "hi"}}},
      {"/v1/messages", {{"model", "m"}, {"messages", kMessages}, {"max_tokens", 9}}}};
  return kBodies;
}

struct DocumentedFields {
  std::map<std::string, std::vector<Json>>
      taken;  // with the only values that pass, where it says so
  // The same, where it is not what asks for nothing that passes.
  std::map<std::string, std::vector<Json>> refused;
};

// "(`a`, `["b"]`)": "a", ["b"]. Brackets without quoted values are remarks.
std::vector<Json> values_in(const std::string& brackets) {
  static const std::regex kValue("`([^`]+)`");
  std::vector<Json> values;
  for (std::sregex_iterator i(brackets.begin(), brackets.end(), kValue), end; i != end; ++i) {
    Json value = Json::parse((*i)[1].str(), nullptr, false);
    values.push_back(value.is_discarded() ? Json((*i)[1].str()) : value);
  }
  return values;
}

// "`a`, `b` (`c`, `d`), `d.e`": a, b with "c" and "d", d.e.
std::map<std::string, std::vector<Json>> names_in(const std::string& cell) {
  static const std::regex kName(R"(`([a-z_.]+)`(?: \(([^)]*)\))?)");
  static const std::set<std::string> kRemarks = {"as `n`"};
  std::map<std::string, std::vector<Json>> names;
  for (std::sregex_iterator i(cell.begin(), cell.end(), kName), end; i != end; ++i) {
    std::string brackets = (*i)[2];
    names[(*i)[1]] = kRemarks.contains(brackets) ? std::vector<Json>{} : values_in(brackets);
  }
  return names;
}

// By call; "" are those of each call.
std::map<std::string, DocumentedFields> rows() {
  std::string text = document();
  size_t begin = text.find("### Fields by call");
  EXPECT_NE(begin, std::string::npos);
  text = text.substr(begin, text.find("\n### ", begin + 1) - begin);
  static const std::regex kRow(R"(\n\| (?:`([^`]+)`|each of these) \| ([^|]*) \| ([^|]*) \|)");
  std::map<std::string, DocumentedFields> fields;
  for (std::sregex_iterator i(text.begin(), text.end(), kRow), end; i != end; ++i) {
    DocumentedFields& row = fields[(*i)[1]];
    row.taken = names_in((*i)[2]);
    row.refused = names_in((*i)[3]);
  }
  return fields;
}

std::map<std::string, DocumentedFields> documented() {
  std::map<std::string, DocumentedFields> fields = rows();
  DocumentedFields of_all = fields[""];
  fields.erase("");
  for (auto& [call, own] : fields) {
    own.taken.insert(of_all.taken.begin(), of_all.taken.end());
    own.refused.insert(of_all.refused.begin(), of_all.refused.end());
  }
  return fields;
}

// The call's body with this field, which may stand in an object: "reasoning.effort".
Json body_with(const std::string& call, const std::string& field, const Json& value) {
  Json body = bodies().at(call);
  size_t dot = field.find('.');
  if (dot == std::string::npos) {
    body[field] = value;
  } else {
    body[field.substr(0, dot)] = {{field.substr(dot + 1), value}};
  }
  if (field.starts_with("stream_options")) body["stream"] = true;
  return body;
}

const std::vector<Json>& some_values() {
  static const std::vector<Json> kValues = {"x", 7, true, Json::array({1}), {{"a", 1}}};
  return kValues;
}

// Values of fields that take none of some_values().
Json good_value(const std::string& call, const std::string& field) {
  static const Json kTool = Json::parse(
      R"({"type": "function", "name": "f", "parameters": {}, "input_schema": {}, "function": {"name": "f"}})");
  static const Json kSchema = Json::parse(
      R"({"type": "json_schema", "name": "n", "schema": {}, "json_schema": {"name": "n", "schema": {}}})");
  static const std::map<std::string, Json> kValues = {
      {"messages", bodies().at("/v1/messages")["messages"]},
      {"temperature", 1},
      {"top_p", 1},
      {"min_p", 1},
      {"presence_penalty", 1},
      {"frequency_penalty", 1},
      {"repetition_penalty", 1},
      {"min_quality", 1},
      {"n", 1},
      {"best_of", 1},
      {"logit_bias", {{"5", 1}}},
      {"metadata", {{"a", "b"}}},
      {"sharing", "off"},
      {"response_format", kSchema},
      {"structured_outputs", {{"regex", "a"}}},
      {"text.format", kSchema},
      {"output_config.format", kSchema},
      {"stop_sequences", {"x"}}};
  if (field == "tools" && call == "/v1/messages")
    return Json::array({{{"name", "f"}, {"input_schema", {{"type", "object"}}}}});
  if (field == "tools") return Json::array({kTool});
  if (field == "top_logprobs") return 7;
  if (field == "tool_choice") return call == "/v1/messages" ? Json{{"type", "auto"}} : Json("auto");
  auto found = kValues.find(field);
  return found == kValues.end() ? Json() : found->second;
}

// Alone some say nothing.
Json whole_body(const std::string& call, const std::string& field, const Json& value) {
  Json body = body_with(call, field, value);
  bool needs_tools = field == "tool_choice" || field == "parallel_tool_calls";
  if (needs_tools) body["tools"] = good_value(call, "tools");
  if (field == "top_logprobs") body["logprobs"] = true;
  return body;
}

TEST(DocumentedFields, BodiesWithoutThemAreTaken) {
  EXPECT_EQ(documented().size(), bodies().size());
  for (const auto& [call, body] : bodies()) EXPECT_EQ(wrong_field(call, body), "") << call;
}

// Every field is of some type: one that is taken and read refuses values of the others.
TEST(DocumentedFields, AreRead) {
  for (const auto& [call, fields] : documented()) {
    for (const auto& [field, only] : fields.taken) {
      bool is_read = false;
      for (const Json& value : some_values()) {
        std::string wrong = wrong_field(call, body_with(call, field, value));
        is_read = is_read || wrong == field || wrong.starts_with(field + ".") ||
                  wrong.starts_with(field + "[");
      }
      EXPECT_TRUE(is_read) << call << " does not look at " << field;
    }
  }
}

TEST(DocumentedFields, AreTakenWithSomeValue) {
  for (const auto& [call, fields] : documented()) {
    for (const auto& [field, only] : fields.taken) {
      std::vector<Json> values = only.empty() ? some_values() : only;
      if (Json good = good_value(call, field); !good.is_null()) values = {good};
      bool is_taken = false;
      for (const Json& value : values)
        is_taken = is_taken || wrong_field(call, whole_body(call, field, value)).empty();
      EXPECT_TRUE(is_taken) << call << " takes no value of " << field;
    }
  }
}

TEST(DocumentedFields, TakeTheValuesInBracketsAlone) {
  size_t num_values = 0;
  for (const auto& [call, fields] : documented()) {
    for (const auto& [field, only] : fields.taken) {
      if (only.empty()) continue;
      num_values += only.size();
      for (const Json& value : only)
        EXPECT_EQ(wrong_field(call, body_with(call, field, value)), "") << call << field << value;
      for (const Json& value :
           {Json("x"), Json("24h"), Json("flex"), Json{{"type", "x"}}, Json({"x"})}) {
        EXPECT_TRUE(wrong_field(call, body_with(call, field, value)).starts_with(field))
            << call << ' ' << field << " = " << value.dump();
      }
    }
  }
  EXPECT_GE(num_values, 20u);
}

// Those that another call takes are held to that call's type first.
TEST(DocumentedFields, PassWhenTheyAskForNothing) {
  static const std::map<std::string, Json> kTyped = {
      {"tools", Json::array()}, {"stop", Json::array()}, {"prompt_logprobs", 0}};
  for (const auto& [call, fields] : documented()) {
    for (const auto& [field, only] : fields.refused) {
      std::vector<Json> values = {Json(), false, 0, "", Json::array(), Json::object()};
      if (!only.empty()) values = only;
      if (auto typed = kTyped.find(field); typed != kTyped.end()) values = {Json(), typed->second};
      for (const Json& value : values) {
        Json body = body_with(call, field, value);
        // What the object must have.
        if (field.starts_with("structured_outputs.")) body["structured_outputs"]["regex"] = "a";
        EXPECT_EQ(wrong_field(call, body), "") << call << ' ' << field << " = " << value.dump();
      }
    }
  }
}

// Of some, nothing is a wish, too: an empty schema allows any JSON, and no other text.
TEST(DocumentedFields, AreRefusedThoughTheyAskForNothing) {
  size_t num_refused = 0;
  for (const auto& [call, fields] : documented()) {
    for (const auto& [field, only] : fields.refused) {
      if (only.empty()) continue;
      for (const Json& value :
           {Json(false), Json(0), Json(""), Json::array(), Json(Json::object())}) {
        if (std::ranges::find(only, value) != only.end()) continue;
        EXPECT_EQ(wrong_field(call, body_with(call, field, value)), field)
            << call << ' ' << field << " = " << value.dump();
        ++num_refused;
      }
    }
  }
  EXPECT_GE(num_refused, 100u);
}

TEST(DocumentedFields, AreRefusedByName) {
  for (const auto& [call, fields] : documented()) {
    for (const auto& [field, only] : fields.refused) {
      for (const Json& value : some_values()) {
        EXPECT_EQ(wrong_field(call, body_with(call, field, value)), field)
            << call << ' ' << field << " = " << value.dump();
      }
    }
  }
}

enum class Depth { kBody, kAny };

// Names that readers ask for, found in their text: of the body itself, or of what stands in it too.
std::set<std::string> names_read(const std::string& file, Depth depth) {
  const std::string object = depth == Depth::kBody ? "fields" : R"(\*?[a-z]+)";
  const std::regex asked(
      (depth == Depth::kBody ? "fields" : "") +
      std::string(
          R"((?:\.|->)(?:find|boolean|integer|number|string|required_string|array|object|reject)\(\s*"([a-z_]+)\")"));
  const std::regex list(R"(reject_(?:unsupported|any_value|any_text|false|other_than_one)\(\s*)" +
                        object + R"(,\s*\{([^}]*)\})");
  const std::regex one("(?:accept_only|reject_with|asks_for_something)\\(" + object +
                       ",\\s*\"([a-z_]+)\"");
  static const std::regex kQuoted("\"([a-z_]+)\"");
  std::string text = read_file(source("src/server/" + file));
  std::set<std::string> names;
  auto collect = [&names](const std::string& from, const std::regex& wanted) {
    for (std::sregex_iterator i(from.begin(), from.end(), wanted), end; i != end; ++i)
      names.insert((*i)[1]);
  };
  collect(text, asked);
  collect(text, one);
  for (std::sregex_iterator i(text.begin(), text.end(), list), end; i != end; ++i)
    collect((*i)[1], kQuoted);
  return names;
}

TEST(DocumentedFields, AreAllThatReadersAskFor) {
  const std::string text = document();
  for (const char* file :
       {"openai/chat_messages.cpp", "openai/chat_request.cpp", "openai/completion_request.cpp",
        "openai/embedding_request.cpp", "openai/generation_fields.cpp", "openai/other_requests.cpp",
        "openai/output_format.cpp", "openai/responses_request.cpp", "openai/tool_fields.cpp",
        "openai/unsupported_fields.cpp", "anthropic/messages_request.cpp"}) {
    std::set<std::string> names = names_read(file, Depth::kAny);
    EXPECT_GE(names.size(), 4u) << file;
    for (const std::string& name : names) {
      bool is_named = text.find('`' + name + '`') != std::string::npos ||
                      text.find('.' + name + '`') != std::string::npos ||
                      text.find('"' + name + '"') != std::string::npos;
      EXPECT_TRUE(is_named) << file << " reads '" << name << "', which docs/http_api.md leaves out";
    }
  }
}

// What a call's own reader asks of the body stands in the table, in the row of that call.
TEST(DocumentedFields, StandInTheRowOfTheirCall) {
  const std::map<std::string, DocumentedFields> fields = documented();
  for (const auto& [file, call] : {std::pair{"openai/chat_request.cpp", "/v1/chat/completions"},
                                   {"openai/chat_messages.cpp", "/v1/chat/completions"},
                                   {"openai/completion_request.cpp", "/v1/completions"},
                                   {"openai/responses_request.cpp", "/v1/responses"},
                                   {"anthropic/messages_request.cpp", "/v1/messages"},
                                   {"openai/generation_fields.cpp", "/v1/chat/completions"},
                                   {"openai/unsupported_fields.cpp", "/v1/chat/completions"}}) {
    const DocumentedFields& row = fields.at(call);
    std::set<std::string> names = names_read(file, Depth::kBody);
    EXPECT_GE(names.size(), 1u) << file;
    for (const std::string& name : names) {
      EXPECT_TRUE(row.taken.contains(name) || row.refused.contains(name))
          << file << " reads '" << name << "', which is not in the row of " << call;
    }
  }
}

}  // namespace
}  // namespace droidspeak
