#include "server/openai/fields.h"

#include <fmt/format.h>

namespace droidspeak::openai {

std::string abbreviated(std::string_view text) {
  constexpr size_t kMost = 64;
  if (text.size() <= kMost) return std::string(text);
  size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

Fields::Fields(JsonValue object, std::string path, std::optional<ApiError>& error)
    : object_(object), path_(std::move(path)), error_(error) {
  check(object.is(JsonKind::kObject), "Fields of a JSON value that is not an object");
}

std::optional<JsonValue> Fields::find(const std::string& name) const {
  std::optional<JsonValue> value = object_.find(name);
  if (value && value->is(JsonKind::kNull)) return std::nullopt;
  return value;
}

void Fields::fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

void Fields::invalid(const std::string& name, const std::string& why) {
  fail(bad_field(fmt::format("Invalid '{}': {}.", path_of(name), why), path_of(name)));
}

bool Fields::check_length(const std::string& name, const std::string& text, size_t most) {
  if (text.size() <= most) return true;
  fail(bad_field(
      fmt::format("Invalid '{}': string too long. Expected a string with maximum length {} bytes, "
                  "but got a string with length {} instead.",
                  path_of(name), most, text.size()),
      path_of(name), "string_above_max_length"));
  return false;
}

bool Fields::check_count(const std::string& name, size_t count, size_t most) {
  if (count <= most) return true;
  fail(bad_field(fmt::format("Invalid '{}': too many entries. Expected a maximum of {}, but got {} "
                             "instead.",
                             path_of(name), most, count),
                 path_of(name), "array_above_max_length"));
  return false;
}

void Fields::wrong_type(const std::string& name, const std::string& expected, JsonKind got) {
  fail(bad_field(fmt::format("Invalid type for '{}': expected {}, but got {} instead.",
                             path_of(name), expected, describe(got)),
                 path_of(name), "invalid_type"));
}

void Fields::missing(const std::string& name) {
  fail(bad_field(fmt::format("Missing required parameter: '{}'.", path_of(name)), path_of(name),
                 "missing_required_parameter"));
}

void Fields::reject(const std::string& name, const std::string& why) {
  fail(bad_field(fmt::format("Unsupported parameter: '{}' {}.", path_of(name), why), path_of(name),
                 "unsupported_parameter"));
}

std::optional<JsonValue> Fields::find_kind(const std::string& name,
                                           JsonKind kind,
                                           const char* expected) {
  std::optional<JsonValue> value = find(name);
  if (!value || value->is(kind)) return value;
  wrong_type(name, expected, value->kind());
  return std::nullopt;
}

std::optional<bool> Fields::boolean(const std::string& name) {
  auto value = find_kind(name, JsonKind::kBoolean, "a boolean");
  if (!value) return std::nullopt;
  return value->boolean();
}

std::optional<int64_t> Fields::integer(const std::string& name, IntegerRange range) {
  auto value = find_kind(name, JsonKind::kInteger, "an integer");
  if (!value) return std::nullopt;
  int64_t number = value->integer();
  if (number < range.low) {
    fail(bad_field(
        fmt::format("Invalid '{}': integer below minimum value. Expected a value >= {}, but "
                    "got {} instead.",
                    path_of(name), range.low, number),
        path_of(name), "integer_below_min_value"));
    return std::nullopt;
  }
  if (number > range.high || value->is_too_large()) {
    fail(bad_field(
        fmt::format("Invalid '{}': integer above maximum value. Expected a value <= {}, but "
                    "got {} instead.",
                    path_of(name), range.high, value->text()),
        path_of(name), "integer_above_max_value"));
    return std::nullopt;
  }
  return number;
}

std::optional<double> Fields::number(const std::string& name, NumberRange range) {
  std::optional<JsonValue> value = find(name);
  if (!value) return std::nullopt;
  if (!value->is(JsonKind::kInteger) && !value->is(JsonKind::kDecimal)) {
    wrong_type(name, "a number", value->kind());
    return std::nullopt;
  }
  double number = value->number();
  bool excludes_low = range.low_end == NumberRange::LowEnd::kExcluded;
  if (number < range.low || (excludes_low && number <= range.low)) {
    fail(bad_field(
        fmt::format("Invalid '{}': decimal below minimum value. Expected a value {} {}, but got "
                    "{} instead.",
                    path_of(name), excludes_low ? ">" : ">=", range.low, number),
        path_of(name), "decimal_below_min_value"));
    return std::nullopt;
  }
  if (number > range.high) {
    fail(bad_field(
        fmt::format("Invalid '{}': decimal above maximum value. Expected a value <= {}, but got "
                    "{} instead.",
                    path_of(name), range.high, number),
        path_of(name), "decimal_above_max_value"));
    return std::nullopt;
  }
  return number;
}

std::optional<std::string> Fields::string(const std::string& name, size_t max_bytes) {
  auto value = find_kind(name, JsonKind::kString, "a string");
  if (!value || !check_length(name, value->string(), max_bytes)) return std::nullopt;
  return value->string();
}

std::string Fields::required_string(const std::string& name, size_t max_bytes) {
  if (!find(name)) missing(name);
  return string(name, max_bytes).value_or("");
}

std::optional<JsonValue> Fields::array(const std::string& name) {
  return find_kind(name, JsonKind::kArray, "an array");
}

std::optional<Fields> Fields::object(const std::string& name) {
  auto value = find_kind(name, JsonKind::kObject, "an object");
  if (!value) return std::nullopt;
  return Fields(*value, path_of(name) + ".", error_);
}

std::optional<Fields> Fields::object_at(const std::string& name, JsonValue array, size_t index) {
  std::string place = fmt::format("{}[{}]", name, index);
  JsonValue item = array.at(index);
  if (item.is(JsonKind::kObject)) return Fields(item, path_of(place) + ".", error_);
  wrong_type(place, "an object", item.kind());
  return std::nullopt;
}

}  // namespace droidspeak::openai
