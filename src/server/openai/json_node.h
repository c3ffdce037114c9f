// The tree behind a JsonDocument: 16 bytes a value, keys in the text's order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace droidspeak::openai {

struct JsonNode;

struct JsonDecimal {
  double value = 0;
  std::string text;  // as it was written
};

using JsonArray = std::vector<JsonNode>;

class JsonObject {
 public:
  using Member = std::pair<std::string, JsonNode>;

  JsonObject();
  ~JsonObject();

  void add(std::string key, JsonNode value);
  // To be called once behind the last add(): find() works from then on.
  void finish();

  const JsonNode* find(std::string_view key) const;  // null: no such key

  const std::vector<Member>& members() const { return members_; }

 private:
  void sort_names();
  void merge_duplicates();

  std::vector<Member> members_;
  std::vector<uint32_t> by_name_;  // places in members_, by key, equal ones in order
};

struct JsonNode {
  std::variant<std::monostate,
               bool,
               int64_t,
               uint64_t,
               std::unique_ptr<JsonDecimal>,
               std::unique_ptr<std::string>,
               std::unique_ptr<JsonArray>,
               std::unique_ptr<JsonObject>>
      value;
};

}  // namespace droidspeak::openai
