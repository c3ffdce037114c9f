// A parsed request body and typed views into it. Hostile input is cheap to refuse: nesting and the
// number of values are bounded before anything is built.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api_error.h"

namespace droidspeak::openai {

enum class JsonKind { kNull, kBoolean, kInteger, kDecimal, kString, kArray, kObject };

// "a string", "an integer", ... as error messages say it.
std::string_view describe(JsonKind kind);

// One value of a JsonDocument, valid while that lives. The typed getters require the right kind.
class JsonValue {
 public:
  explicit JsonValue(const void* node) : node_(node) {}

  JsonKind kind() const;

  bool is(JsonKind wanted) const { return kind() == wanted; }

  bool boolean() const;
  int64_t integer() const;  // saturates
  double number() const;    // of kInteger and kDecimal
  const std::string& string() const;

  size_t size() const;  // of kArray and kObject
  JsonValue at(size_t index) const;
  std::optional<JsonValue> find(const std::string& key) const;
  std::vector<std::pair<std::string, JsonValue>> members() const;

  int depth() const;  // 0 of a scalar, 1 of an array of scalars

 private:
  const void* node_;  // nlohmann::json, which headers do not name
};

// The text of a member's value as it stands in `object`, which is the valid JSON text of an object:
// the order of keys inside it is kept. Empty when there is no such member; of several the last one.
std::string_view member_text(std::string_view object, std::string_view name);

class JsonDocument {
 public:
  static constexpr int kMaxDepth = 64;
  static constexpr size_t kMaxValues = size_t{1} << 20;
  static constexpr size_t kMaxKeys = size_t{1} << 18;  // of all objects; they cost more memory

  // 400 for what is not one JSON value within the limits. Of duplicate keys the last one counts.
  static ApiResult<JsonDocument> parse(std::string_view text);

  JsonValue root() const { return JsonValue(tree_.get()); }

 private:
  explicit JsonDocument(std::shared_ptr<const void> tree) : tree_(std::move(tree)) {}

  std::shared_ptr<const void> tree_;  // shared: documents are copied into deferred work
};

}  // namespace droidspeak::openai
