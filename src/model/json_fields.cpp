#include "model/json_fields.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace droidspeak {

using nlohmann::json;

namespace {

// Of config.json and family.json: values take some twenty times their bytes in memory.
constexpr size_t kMaxFieldsBytes = size_t{16} << 20;
constexpr JsonLimits kFieldsLimits{.depth = 64, .values = size_t{1} << 20};

int64_t int_of(const json& value, int64_t low, int64_t high, const std::function<void()>& refuse) {
  bool is_whole = value.is_number_integer() &&
                  (!value.is_number_unsigned() || std::in_range<int64_t>(value.get<uint64_t>()));
  if (!is_whole || value.get<int64_t>() < low || value.get<int64_t>() > high) refuse();
  return value.get<int64_t>();
}

}  // namespace

JsonFields::JsonFields(const std::filesystem::path& path)
    : JsonFields(path, read_file(path, kMaxFieldsBytes), kFieldsLimits) {}

JsonFields::JsonFields(const std::filesystem::path& path,
                       std::string_view text,
                       const JsonLimits& limits)
    : path_(path) {
  if (auto excess = find_json_excess(text, limits))
    throw Failure(ErrorCode::kDataCorrupt, fmt::format("{}: JSON {}", path.string(), *excess));
  value_ = std::make_unique<json>(json::parse(text, nullptr, false));
  if (value_->is_discarded() || !value_->is_object()) {
    throw Failure(ErrorCode::kDataCorrupt,
                  fmt::format("{}: expected a JSON object", path.string()));
  }
}

JsonFields::JsonFields(std::filesystem::path path, std::string prefix, const json& value)
    : path_(std::move(path)), prefix_(std::move(prefix)), value_(std::make_unique<json>(value)) {}

JsonFields::JsonFields(const JsonFields& other)
    : path_(other.path_), prefix_(other.prefix_), value_(std::make_unique<json>(*other.value_)) {}

JsonFields::~JsonFields() = default;

const json* JsonFields::find(std::string_view field) const {
  auto found = value_->find(field);
  return found == value_->end() || found->is_null() ? nullptr : &*found;
}

const json& JsonFields::get(std::string_view field, std::string_view expected) const {
  const json* found = find(field);
  if (found == nullptr) refuse(field, expected);
  return *found;
}

void JsonFields::refuse(std::string_view field, std::string_view expected) const {
  auto found = value_->find(field);
  refuse_value(field, found != value_->end() ? &*found : nullptr, expected);
}

void JsonFields::refuse_value(std::string_view field,
                              const json* value,
                              std::string_view expected) const {
  std::string shown = "missing";
  if (value != nullptr) {
    shown = value->dump(-1, ' ', false, json::error_handler_t::replace);
    if (shown.size() > 60) shown = shown.substr(0, 60) + "...";
  }
  throw Failure(ErrorCode::kInvalidArgument,
                fmt::format("{}: field \"{}{}\" is {}: expected {}", path_.string(), prefix_, field,
                            shown, expected));
}

bool JsonFields::has(std::string_view field) const {
  return find(field) != nullptr;
}

bool JsonFields::is_blank(std::string_view field) const {
  const json* value = find(field);
  if (value == nullptr) return true;
  if (value->is_boolean()) return !value->get<bool>();
  if (value->is_number()) return value->get<double>() == 0;
  if (value->is_string()) return value->get_ref<const std::string&>().empty();
  return value->empty();
}

bool JsonFields::is_text(std::string_view field) const {
  const json* value = find(field);
  return value != nullptr && value->is_string();
}

bool JsonFields::is_list(std::string_view field) const {
  const json* value = find(field);
  return value != nullptr && value->is_array();
}

int64_t JsonFields::get_int(std::string_view field, int64_t low, int64_t high) const {
  std::string expected = fmt::format("an integer from {} to {}", low, high);
  return int_of(get(field, expected), low, high, [&] { refuse(field, expected); });
}

std::vector<int64_t> JsonFields::get_ints(std::string_view field, int64_t low, int64_t high) const {
  const std::string expected = fmt::format("integers from {} to {}", low, high);
  const json& list = get(field, expected);
  if (!list.is_array()) return {int_of(list, low, high, [&] { refuse(field, expected); })};
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < list.size(); ++i) {
    numbers.push_back(int_of(list[i], low, high, [&] {
      refuse_value(fmt::format("{}[{}]", field, i), &list[i],
                   fmt::format("an integer from {} to {}", low, high));
    }));
  }
  return numbers;
}

int64_t JsonFields::get_int_or(std::string_view field,
                               int64_t fallback,
                               int64_t low,
                               int64_t high) const {
  return has(field) ? get_int(field, low, high) : fallback;
}

double JsonFields::get_double(std::string_view field) const {
  const json& value = get(field, "a finite number");
  if (!value.is_number() || !std::isfinite(value.get<double>())) refuse(field, "a finite number");
  return value.get<double>();
}

double JsonFields::get_double_or(std::string_view field, double fallback) const {
  return has(field) ? get_double(field) : fallback;
}

bool JsonFields::get_bool_or(std::string_view field, bool fallback) const {
  const json* value = find(field);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) refuse(field, "true or false");
  return value->get<bool>();
}

std::string JsonFields::get_string(std::string_view field) const {
  const json& value = get(field, "a string");
  if (!value.is_string()) refuse(field, "a string");
  return value.get<std::string>();
}

std::string JsonFields::get_string_or(std::string_view field, std::string fallback) const {
  return has(field) ? get_string(field) : std::move(fallback);
}

std::vector<float> JsonFields::get_floats(std::string_view field) const {
  const json& value = get(field, "a list of numbers");
  if (!value.is_array()) refuse(field, "a list of numbers");
  std::vector<float> numbers;
  for (const json& item : value) {
    if (!item.is_number()) refuse(field, "a list of numbers");
    numbers.push_back(item.get<float>());
  }
  return numbers;
}

std::vector<std::string> JsonFields::get_strings(std::string_view field) const {
  const json& value = get(field, "a list of strings");
  if (!value.is_array()) refuse(field, "a list of strings");
  std::vector<std::string> texts;
  for (const json& item : value) {
    if (!item.is_string()) refuse(field, "a list of strings");
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

std::optional<JsonFields> JsonFields::find_object(std::string_view field) const {
  const json* value = find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) refuse(field, "an object");
  return JsonFields(path_, fmt::format("{}{}.", prefix_, field), *value);
}

std::vector<JsonFields> JsonFields::get_objects(std::string_view field) const {
  const json& value = get(field, "a list of objects");
  if (!value.is_array()) refuse(field, "a list of objects");
  std::vector<JsonFields> objects;
  for (size_t i = 0; i < value.size(); ++i) {
    if (!value[i].is_object()) refuse(field, "a list of objects");
    objects.push_back(JsonFields(path_, fmt::format("{}{}[{}].", prefix_, field, i), value[i]));
  }
  return objects;
}

std::vector<std::string> JsonFields::keys() const {
  std::vector<std::string> names;
  for (const auto& [name, unused] : value_->items()) names.push_back(name);
  return names;
}

void JsonFields::accept_only(std::initializer_list<std::string_view> fields) const {
  for (const std::string& name : keys()) {
    if (std::ranges::find(fields, name) == fields.end())
      refuse(name, fmt::format("no such field, but {}", fmt::join(fields, ", ")));
  }
}

}  // namespace droidspeak
