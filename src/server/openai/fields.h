// Typed reading of a JSON object's fields. The first problem is kept, later ones are dropped, so
// that a reader asks for all fields one after another and looks for an error once at the end.
// `null` reads as absent.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/json_document.h"

namespace droidspeak::openai {

struct NumberRange {
  double low = std::numeric_limits<double>::lowest();
  double high = std::numeric_limits<double>::max();
  enum class LowEnd { kIncluded, kExcluded } low_end = LowEnd::kIncluded;
};

struct IntegerRange {
  int64_t low = std::numeric_limits<int64_t>::min();
  int64_t high = std::numeric_limits<int64_t>::max();
};

// What of a client's text an error message repeats.
std::string abbreviated(std::string_view text);

inline constexpr size_t kAnyLength = std::numeric_limits<size_t>::max();  // the body's limit holds

class Fields {
 public:
  // `path` is put before field names in errors ("messages[0]."). `error` outlives this.
  Fields(JsonValue object, std::string path, std::optional<ApiError>& error);

  // The value when it is there and not null, whatever its kind.
  std::optional<JsonValue> find(const std::string& name) const;

  std::optional<bool> boolean(const std::string& name);
  std::optional<int64_t> integer(const std::string& name, IntegerRange range = {});
  std::optional<double> number(const std::string& name, NumberRange range = {});
  std::optional<std::string> string(const std::string& name, size_t max_bytes);
  std::string required_string(const std::string& name, size_t max_bytes);
  std::optional<JsonValue> array(const std::string& name);
  std::optional<Fields> object(const std::string& name);
  // Element `index` of the array `name`, which must be an object: its path is "name[index].".
  std::optional<Fields> object_at(const std::string& name, JsonValue array, size_t index);

  // 400 when the field is there and not one of these.
  void reject(const std::string& name, const std::string& why);
  void missing(const std::string& name);
  void fail(ApiError error);
  // "Invalid 'x': why."
  void invalid(const std::string& name, const std::string& why);
  // Report what has more than `most`; false then.
  bool check_length(const std::string& name, const std::string& text, size_t most);
  bool check_count(const std::string& name, size_t count, size_t most);
  // "Invalid type for 'x': expected y, but got z instead."
  void wrong_type(const std::string& name, const std::string& expected, JsonKind got);

  std::string path_of(const std::string& name) const { return path_ + name; }

  JsonValue value() const { return object_; }

  bool has_failed() const { return error_.has_value(); }

 private:
  std::optional<JsonValue> find_kind(const std::string& name, JsonKind kind, const char* expected);

  JsonValue object_;
  std::string path_;
  std::optional<ApiError>& error_;
};

}  // namespace droidspeak::openai
