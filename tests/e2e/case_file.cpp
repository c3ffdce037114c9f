#include "e2e/case_file.h"

#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace droidspeak {

namespace {

using Json = nlohmann::json;

std::string difference(const Json& expected, const Json& actual, const std::string& path);

std::string object_difference(const Json& expected, const Json& actual, const std::string& path) {
  if (!actual.is_object()) return path + " is not an object: " + actual.dump();
  for (const auto& [key, value] : expected.items()) {
    if (!actual.contains(key)) return path + "." + key + " is missing";
    if (auto found = difference(value, actual[key], path + "." + key); !found.empty()) return found;
  }
  return "";
}

std::string array_difference(const Json& expected, const Json& actual, const std::string& path) {
  if (!actual.is_array()) return path + " is not an array: " + actual.dump();
  if (actual.size() != expected.size()) {
    return fmt::format("{} has {} elements, not {}: {}", path, actual.size(), expected.size(),
                       actual.dump());
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    auto found = difference(expected[i], actual[i], fmt::format("{}[{}]", path, i));
    if (!found.empty()) return found;
  }
  return "";
}

std::string difference(const Json& expected, const Json& actual, const std::string& path) {
  if (expected == "<any>") return "";
  if (expected == "<string>" && actual.is_string()) return "";
  if (expected == "<text>" && actual.is_string() && !actual.get<std::string>().empty()) return "";
  if (expected == "<number>" && actual.is_number()) return "";
  if (expected.is_object()) return object_difference(expected, actual, path);
  if (expected.is_array()) return array_difference(expected, actual, path);
  if (expected == actual) return "";
  return fmt::format("{} is {}, not {}", path, actual.dump(), expected.dump());
}

std::string text_difference(const std::string& expected,
                            const std::string& actual,
                            const std::string& path) {
  if (!expected.starts_with('{')) {
    return expected == actual ? "" : fmt::format("{} is '{}', not '{}'", path, actual, expected);
  }
  Json actual_json = Json::parse(actual, nullptr, false);
  if (actual_json.is_discarded()) return path + " is not JSON: " + actual;
  return difference(Json::parse(expected), actual_json, path);
}

std::string event_difference(const std::vector<std::string>& expected,
                             const std::vector<std::string>& actual) {
  size_t position = 0;
  bool may_skip = false;
  for (const std::string& wanted : expected) {
    if (wanted == "...") {
      may_skip = true;
      continue;
    }
    std::string found = "the stream has ended";
    while (position < actual.size()) {
      found = text_difference(wanted, actual[position++], fmt::format("event {}", position));
      if (found.empty() || !may_skip) break;
    }
    if (!found.empty()) return fmt::format("{} (looking for {})", found, wanted);
    may_skip = false;
  }
  if (position < actual.size() && !may_skip) return "unexpected event " + actual[position];
  return "";
}

void add_expected_line(CaseExchange& exchange, const std::string& line) {
  if (line.starts_with("event ")) {
    exchange.events.push_back(line.substr(6));
  } else {
    exchange.json += line;
  }
}

void add_marked_line(CaseExchange& exchange, const std::string& line) {
  std::string rest = line.substr(2);
  if (line[0] == '<') {
    if (exchange.status == 0) {
      exchange.status = std::stoi(rest);
    } else {
      exchange.headers.push_back(rest);
    }
  } else if (exchange.line == 0) {
    size_t space = rest.find(' ');
    exchange.request.method = rest.substr(0, space);
    exchange.request.path = rest.substr(space + 1);
  } else {
    exchange.request.headers.push_back(rest);
  }
}

}  // namespace

std::vector<CaseExchange> read_case_file(const std::filesystem::path& path) {
  std::vector<CaseExchange> exchanges(1);
  std::istringstream lines(read_file(path));
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    CaseExchange& exchange = exchanges.back();
    if (line.empty() || line.starts_with("# ")) continue;
    if (line == "---") {
      exchanges.emplace_back();
    } else if (line.starts_with("> ") || line.starts_with("< ")) {
      add_marked_line(exchange, line);
      if (exchange.line == 0) exchange.line = number;
    } else if (exchange.status == 0) {
      exchange.request.body += line;
    } else {
      add_expected_line(exchange, line);
    }
  }
  for (const CaseExchange& exchange : exchanges) {
    if (exchange.status == 0)
      throw Failure(ErrorCode::kInvalidArgument, path.string() + ": a case without status");
  }
  return exchanges;
}

std::string describe_difference(const CaseExchange& expected, const ClientResponse& response) {
  if (response.status != expected.status) {
    return fmt::format("status is {}, not {}: {}", response.status, expected.status, response.body);
  }
  for (const std::string& header : expected.headers) {
    size_t colon = header.find(": ");
    auto found = response.headers.find(header.substr(0, colon));
    if (found == response.headers.end()) return "no header " + header;
    std::string wanted = header.substr(colon + 2);
    if (wanted != "<any>" && found->second != wanted) return header + " is " + found->second;
  }
  if (!expected.events.empty()) return event_difference(expected.events, response.events());
  if (!expected.json.empty()) return text_difference(expected.json, response.body, "body");
  return "";
}

}  // namespace droidspeak
