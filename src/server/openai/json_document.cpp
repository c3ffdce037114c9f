#include "server/openai/json_document.h"

#include <algorithm>
#include <limits>

#include <nlohmann/json.hpp>

#include "base/json_scan.h"

namespace droidspeak::openai {

namespace {

using Json = nlohmann::json;

const Json& as_json(const void* node) {
  return *static_cast<const Json*>(node);
}

ApiError unparsable(const std::string& message) {
  return status_error(400, "We could not parse the JSON body of your request: " + message);
}

constexpr std::string_view kBlanks = " \t\r\n";

// One past the value that begins at `begin` of a valid JSON text.
size_t end_of_value(std::string_view text, size_t begin) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = begin; i < text.size(); ++i) {
    char c = text[i];
    bool was_string = in_string;
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      if (depth == 0) return i;  // of what holds the value
      if (--depth == 0) return i + 1;
    } else if (depth == 0 && (c == ',' || kBlanks.find(c) != std::string_view::npos)) {
      return i;
    }
    if (depth == 0 && was_string && !in_string) return i + 1;
  }
  return text.size();
}

// Whether `text`, a JSON string with its quotes, means `name`.
bool is_string_text(std::string_view text, std::string_view name) {
  if (text.find('\\') == std::string_view::npos) return text.substr(1, text.size() - 2) == name;
  return Json::parse(text).get<std::string>() == name;
}

// nlohmann's text without its "[json.exception.parse_error.101] " and without a copy of the input.
std::string explain(const std::exception& error) {
  std::string text = error.what();
  if (size_t end = text.find("] "); text.starts_with('[') && end != std::string::npos) {
    text = text.substr(end + 2);
  }
  if (size_t quoted = text.find("; last read"); quoted != std::string::npos) text.resize(quoted);
  return text + ".";
}

}  // namespace

std::string_view describe(JsonKind kind) {
  switch (kind) {
    case JsonKind::kNull:
      return "null";
    case JsonKind::kBoolean:
      return "a boolean";
    case JsonKind::kInteger:
      return "an integer";
    case JsonKind::kDecimal:
      return "a decimal number";
    case JsonKind::kString:
      return "a string";
    case JsonKind::kArray:
      return "an array";
    case JsonKind::kObject:
      return "an object";
  }
  panic("unknown JsonKind");
}

JsonKind JsonValue::kind() const {
  switch (as_json(node_).type()) {
    case Json::value_t::null:
    case Json::value_t::discarded:
    case Json::value_t::binary:
      return JsonKind::kNull;
    case Json::value_t::boolean:
      return JsonKind::kBoolean;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return JsonKind::kInteger;
    case Json::value_t::number_float:
      return JsonKind::kDecimal;
    case Json::value_t::string:
      return JsonKind::kString;
    case Json::value_t::array:
      return JsonKind::kArray;
    case Json::value_t::object:
      return JsonKind::kObject;
  }
  panic("unknown JSON type");
}

bool JsonValue::boolean() const {
  return as_json(node_).get<bool>();
}

int64_t JsonValue::integer() const {
  const Json& json = as_json(node_);
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  if (json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(kMax)) return kMax;
  return json.get<int64_t>();
}

double JsonValue::number() const {
  return as_json(node_).get<double>();
}

const std::string& JsonValue::string() const {
  return as_json(node_).get_ref<const std::string&>();
}

size_t JsonValue::size() const {
  return as_json(node_).size();
}

JsonValue JsonValue::at(size_t index) const {
  return JsonValue(&as_json(node_).at(index));
}

std::optional<JsonValue> JsonValue::find(const std::string& key) const {
  auto found = as_json(node_).find(key);
  if (found == as_json(node_).end()) return std::nullopt;
  return JsonValue(&*found);
}

std::vector<std::pair<std::string, JsonValue>> JsonValue::members() const {
  std::vector<std::pair<std::string, JsonValue>> result;
  for (const auto& item : as_json(node_).items()) {
    result.emplace_back(item.key(), JsonValue(&item.value()));
  }
  return result;
}

int JsonValue::depth() const {
  const Json& json = as_json(node_);
  if (!json.is_structured()) return 0;
  int deepest = 0;
  for (const Json& item : json) deepest = std::max(deepest, JsonValue(&item).depth());
  return 1 + deepest;
}

std::string_view member_text(std::string_view object, std::string_view name) {
  std::string_view found;
  size_t at = object.find('{') + 1;
  while (true) {
    size_t key = object.find('"', at);
    if (key == std::string_view::npos) return found;
    size_t key_end = end_of_value(object, key);
    size_t value = object.find_first_not_of(kBlanks, object.find(':', key_end) + 1);
    size_t value_end = end_of_value(object, value);
    if (is_string_text(object.substr(key, key_end - key), name)) {
      found = object.substr(value, value_end - value);
    }
    at = value_end;
  }
}

ApiResult<JsonDocument> JsonDocument::parse(std::string_view text) {
  if (text.empty()) return unparsable("the body is empty.");
  if (auto excess = find_json_excess(text, {kMaxDepth, kMaxValues, kMaxKeys}))
    return unparsable("it " + *excess + ".");
  try {
    auto tree = std::make_shared<Json>(Json::parse(text.begin(), text.end()));
    return JsonDocument(std::move(tree));
  } catch (const Json::exception& error) {
    return unparsable(explain(error));
  }
}

}  // namespace droidspeak::openai
