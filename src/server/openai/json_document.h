// A parsed request body and typed views into it. Keys keep the client's order, which templates and
// schemas show to the model. Hostile input is cheap to refuse: nesting and the number of values are
// bounded before anything is built.
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

namespace droidspeak {
class JsonWriter;
}

namespace droidspeak::openai {

struct JsonNode;

enum class JsonKind { kNull, kBoolean, kInteger, kDecimal, kString, kArray, kObject };

// "a string", "an integer", ... as error messages say it.
std::string_view describe(JsonKind kind);

// One value of a JsonDocument, valid while that lives. The typed getters require the right kind.
class JsonValue {
 public:
  explicit JsonValue(const JsonNode& node) : node_(&node) {}

  JsonKind kind() const;

  bool is(JsonKind wanted) const { return kind() == wanted; }

  bool boolean() const;
  int64_t integer() const;    // the largest where is_too_large()
  bool is_too_large() const;  // an integer beyond 64 bits with a sign
  double number() const;      // of kInteger and kDecimal
  const std::string& string() const;

  size_t size() const;  // of kArray and kObject, else 0
  JsonValue at(size_t index) const;
  std::optional<JsonValue> find(std::string_view key) const;
  // In the client's order; of duplicate keys the last value at the first place.
  std::vector<std::pair<std::string, JsonValue>> members() const;

  int depth() const;  // 0 of a scalar, 1 of an array of scalars

  // JSON again: keys in order, decimal numbers as they were written.
  std::string text() const;

 private:
  void write(JsonWriter& json) const;

  const JsonNode* node_;
};

class JsonDocument {
 public:
  static constexpr int kMaxDepth = 64;
  static constexpr size_t kMaxValues = size_t{1} << 20;
  static constexpr size_t kMaxKeys = size_t{1} << 18;  // of all objects; they cost more memory

  // 400 for what is not one JSON value within the limits.
  static ApiResult<JsonDocument> parse(std::string_view text);

  JsonValue root() const { return JsonValue(*tree_); }

 private:
  explicit JsonDocument(std::shared_ptr<const JsonNode> tree) : tree_(std::move(tree)) {}

  std::shared_ptr<const JsonNode> tree_;  // shared: ApiResult copies what it holds
};

}  // namespace droidspeak::openai
