// The table of fields in docs/http_api.md against the readers of requests, both ways.
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
  std::set<std::string> taken;
  std::set<std::string> refused;
};

// "`a`, `b` (`c`, 7), `d.e`": a, b, d.e.
std::set<std::string> names_in(const std::string& cell) {
  static const std::regex kRemarks(R"(\([^)]*\))");
  static const std::regex kName("`([a-z_.]+)`");
  std::string plain = std::regex_replace(cell, kRemarks, "");
  std::set<std::string> names;
  for (std::sregex_iterator i(plain.begin(), plain.end(), kName), end; i != end; ++i)
    names.insert((*i)[1]);
  return names;
}

std::map<std::string, DocumentedFields> documented() {
  std::string text = document();
  size_t begin = text.find("### Fields by call");
  EXPECT_NE(begin, std::string::npos);
  text = text.substr(begin, text.find("\n### ", begin + 1) - begin);
  static const std::regex kRow(R"(\n\| (?:`([^`]+)`|each of these) \| ([^|]*) \| ([^|]*) \|)");
  std::map<std::string, DocumentedFields> fields;
  for (std::sregex_iterator i(text.begin(), text.end(), kRow), end; i != end; ++i)
    fields[(*i)[1]] = {names_in((*i)[2]), names_in((*i)[3])};
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

TEST(DocumentedFields, BodiesWithoutThemAreTaken) {
  EXPECT_EQ(documented().size(), bodies().size());
  for (const auto& [call, body] : bodies()) EXPECT_EQ(wrong_field(call, body), "") << call;
}

// Every field is of some type: one that is taken and read refuses values of the others.
TEST(DocumentedFields, AreRead) {
  for (const auto& [call, fields] : documented()) {
    for (const std::string& field : fields.taken) {
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

TEST(DocumentedFields, AreRefusedByName) {
  for (const auto& [call, fields] : documented()) {
    for (const std::string& field : fields.refused) {
      for (const Json& value : some_values()) {
        EXPECT_EQ(wrong_field(call, body_with(call, field, value)), field)
            << call << ' ' << field << " = " << value.dump();
      }
    }
  }
}

// Names that readers ask for, found in their text.
std::set<std::string> names_read(const std::string& file) {
  static const std::regex kAsked(
      R"((?:\.|->)(?:find|boolean|integer|number|string|required_string|array|object|reject)\(\s*"([a-z_]+)\")");
  static const std::regex kList(R"(reject_unsupported\(\s*[^{}]*\{([^}]*)\})");
  static const std::regex kAccepted(R"regex(accept_only\(\*?[a-z]+, "([a-z_]+)")regex");
  static const std::regex kQuoted("\"([a-z_]+)\"");
  std::string text = read_file(source("src/server/" + file));
  std::set<std::string> names;
  auto collect = [&names](const std::string& from, const std::regex& wanted) {
    for (std::sregex_iterator i(from.begin(), from.end(), wanted), end; i != end; ++i)
      names.insert((*i)[1]);
  };
  collect(text, kAsked);
  collect(text, kAccepted);
  for (std::sregex_iterator i(text.begin(), text.end(), kList), end; i != end; ++i)
    collect((*i)[1], kQuoted);
  return names;
}

TEST(DocumentedFields, AreAllThatReadersAskFor) {
  const std::string text = document();
  for (const char* file :
       {"openai/chat_messages.cpp", "openai/chat_request.cpp", "openai/completion_request.cpp",
        "openai/embedding_request.cpp", "openai/generation_fields.cpp", "openai/other_requests.cpp",
        "openai/output_format.cpp", "openai/responses_request.cpp", "openai/tool_fields.cpp",
        "anthropic/messages_request.cpp"}) {
    std::set<std::string> names = names_read(file);
    EXPECT_GE(names.size(), 4u) << file;
    for (const std::string& name : names) {
      bool is_named = text.find('`' + name + '`') != std::string::npos ||
                      text.find('.' + name + '`') != std::string::npos ||
                      text.find('"' + name + '"') != std::string::npos;
      EXPECT_TRUE(is_named) << file << " reads '" << name << "', which docs/http_api.md leaves out";
    }
  }
}

}  // namespace
}  // namespace droidspeak
