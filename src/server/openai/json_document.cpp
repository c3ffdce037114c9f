#include "server/openai/json_document.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_scan.h"
#include "server/json_writer.h"
#include "server/openai/json_node.h"

namespace droidspeak::openai {

namespace {

using Json = nlohmann::json;

// These take more memory than other values, and nobody means so many.
constexpr size_t kMaxTexts = size_t{1} << 18;
constexpr size_t kMaxDecimals = size_t{1} << 16;

ApiError unparsable(const std::string& message) {
  return status_error(400, "We could not parse the JSON body of your request: " + message);
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

// Builds the tree while the text is read.
class TreeReader final : public nlohmann::json_sax<Json> {
 public:
  JsonNode take() { return std::move(root_); }

  const std::string& problem() const { return problem_; }

  bool null() override { return add({}); }

  bool boolean(bool flag) override { return add({flag}); }

  bool number_integer(int64_t number) override { return add({number}); }

  bool number_unsigned(uint64_t number) override {
    constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    return number > kMax ? add({number}) : add({static_cast<int64_t>(number)});
  }

  bool number_float(double number, const std::string& text) override {
    if (++num_decimals_ > kMaxDecimals) return refuse("decimal numbers", kMaxDecimals);
    return add({std::make_unique<JsonDecimal>(JsonDecimal{number, text})});
  }

  bool string(std::string& text) override {
    if (++num_texts_ > kMaxTexts) return refuse("texts", kMaxTexts);
    return add({std::make_unique<std::string>(std::move(text))});
  }

  bool binary(Json::binary_t&) override { return false; }

  bool start_object(size_t) override {
    open_.push_back({std::make_unique<JsonObject>(), nullptr, {}});
    return true;
  }

  bool key(std::string& text) override {
    open_.back().key = std::move(text);
    return true;
  }

  bool end_object() override {
    std::unique_ptr<JsonObject> object = std::move(open_.back().object);
    open_.pop_back();
    object->finish();
    return add({std::move(object)});
  }

  bool start_array(size_t) override {
    open_.push_back({nullptr, std::make_unique<JsonArray>(), {}});
    return true;
  }

  bool end_array() override {
    std::unique_ptr<JsonArray> array = std::move(open_.back().array);
    open_.pop_back();
    return add({std::move(array)});
  }

  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    problem_ = explain(error);
    return false;
  }

 private:
  // Its end has not come yet: an object, whose next value belongs to `key`, or an array.
  struct Open {
    std::unique_ptr<JsonObject> object;
    std::unique_ptr<JsonArray> array;
    std::string key;
  };

  bool refuse(const char* what, size_t most) {
    problem_ = fmt::format("it has more than {} {}.", most, what);
    return false;
  }

  bool add(JsonNode node) {
    if (open_.empty()) {
      root_ = std::move(node);
    } else if (Open& parent = open_.back(); parent.object) {
      parent.object->add(std::move(parent.key), std::move(node));
    } else {
      parent.array->push_back(std::move(node));
    }
    return true;
  }

  std::vector<Open> open_;
  JsonNode root_;
  std::string problem_;
  size_t num_texts_ = 0;
  size_t num_decimals_ = 0;
};

template <class T>
const T& held(const JsonNode& node) {
  const auto* value = std::get_if<std::unique_ptr<T>>(&node.value);
  check(value != nullptr, "JSON value of another kind");
  return **value;
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
  constexpr JsonKind kKinds[] = {JsonKind::kNull,    JsonKind::kBoolean, JsonKind::kInteger,
                                 JsonKind::kInteger, JsonKind::kDecimal, JsonKind::kString,
                                 JsonKind::kArray,   JsonKind::kObject};
  static_assert(std::size(kKinds) == std::variant_size_v<decltype(JsonNode::value)>);
  return kKinds[node_->value.index()];
}

bool JsonValue::boolean() const {
  return std::get<bool>(node_->value);
}

int64_t JsonValue::integer() const {
  if (const auto* number = std::get_if<int64_t>(&node_->value)) return *number;
  check(is(JsonKind::kInteger), "integer of another JSON value");
  return std::numeric_limits<int64_t>::max();
}

bool JsonValue::is_too_large() const {
  return std::holds_alternative<uint64_t>(node_->value);
}

double JsonValue::number() const {
  if (const auto* number = std::get_if<int64_t>(&node_->value)) return static_cast<double>(*number);
  if (const auto* number = std::get_if<uint64_t>(&node_->value))
    return static_cast<double>(*number);
  return held<JsonDecimal>(*node_).value;
}

const std::string& JsonValue::string() const {
  return held<std::string>(*node_);
}

size_t JsonValue::size() const {
  if (is(JsonKind::kArray)) return held<JsonArray>(*node_).size();
  return is(JsonKind::kObject) ? held<JsonObject>(*node_).members().size() : 0;
}

JsonValue JsonValue::at(size_t index) const {
  return JsonValue(held<JsonArray>(*node_).at(index));
}

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
  const JsonNode* found = held<JsonObject>(*node_).find(key);
  if (found == nullptr) return std::nullopt;
  return JsonValue(*found);
}

std::vector<std::pair<std::string, JsonValue>> JsonValue::members() const {
  std::vector<std::pair<std::string, JsonValue>> result;
  for (const auto& [key, value] : held<JsonObject>(*node_).members()) {
    result.emplace_back(key, JsonValue(value));
  }
  return result;
}

int JsonValue::depth() const {
  int deepest = 0;
  auto look_at = [&](const JsonNode& node) {
    deepest = std::max(deepest, JsonValue(node).depth());
  };
  if (is(JsonKind::kArray)) {
    for (const JsonNode& item : held<JsonArray>(*node_)) look_at(item);
  } else if (is(JsonKind::kObject)) {
    for (const auto& member : held<JsonObject>(*node_).members()) look_at(member.second);
  } else {
    return 0;
  }
  return 1 + deepest;
}

std::string JsonValue::text() const {
  JsonWriter json;
  write(json);
  return std::move(json).take();
}

void JsonValue::write(JsonWriter& json) const {
  switch (kind()) {
    case JsonKind::kNull:
      json.null();
      return;
    case JsonKind::kBoolean:
      json.boolean(boolean());
      return;
    case JsonKind::kInteger:
      if (const auto* large = std::get_if<uint64_t>(&node_->value)) {
        json.unsigned_integer(*large);
      } else {
        json.integer(integer());
      }
      return;
    case JsonKind::kDecimal:
      json.raw(held<JsonDecimal>(*node_).text);
      return;
    case JsonKind::kString:
      json.text(string());
      return;
    case JsonKind::kArray:
      json.begin_array();
      for (const JsonNode& item : held<JsonArray>(*node_)) JsonValue(item).write(json);
      json.end_array();
      return;
    case JsonKind::kObject:
      json.begin_object();
      for (const auto& [key, value] : held<JsonObject>(*node_).members()) {
        json.key(key);
        JsonValue(value).write(json);
      }
      json.end_object();
      return;
  }
}

ApiResult<JsonDocument> JsonDocument::parse(std::string_view text) {
  if (text.empty()) return unparsable("the body is empty.");
  if (auto excess = find_json_excess(text, {kMaxDepth, kMaxValues, kMaxKeys}))
    return unparsable("it " + *excess + ".");
  TreeReader reader;
  if (!Json::sax_parse(text.begin(), text.end(), &reader)) return unparsable(reader.problem());
  return JsonDocument(std::make_shared<JsonNode>(reader.take()));
}

}  // namespace droidspeak::openai
