// Typed access to the fields of a JSON file, with errors that name file, field, value and what is
// right.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/json_scan.h"

namespace droidspeak {

class JsonFields {
 public:
  // Parses a file that holds one JSON object, nested at most 64 deep.
  explicit JsonFields(const std::filesystem::path& path);
  // Its content, read already; `path` is for messages.
  JsonFields(const std::filesystem::path& path, std::string_view text, const JsonLimits& limits);
  JsonFields(const JsonFields& other);
  ~JsonFields();

  bool has(std::string_view field) const;       // present and not null
  bool is_blank(std::string_view field) const;  // missing, null, false, 0 or empty
  bool is_text(std::string_view field) const;
  bool is_list(std::string_view field) const;
  int64_t get_int(std::string_view field, int64_t low, int64_t high) const;
  int64_t get_int_or(std::string_view field, int64_t fallback, int64_t low, int64_t high) const;
  // A list of integers, or a single one.
  std::vector<int64_t> get_ints(std::string_view field, int64_t low, int64_t high) const;
  double get_double(std::string_view field) const;
  double get_double_or(std::string_view field, double fallback) const;
  bool get_bool_or(std::string_view field, bool fallback) const;
  std::string get_string(std::string_view field) const;
  std::string get_string_or(std::string_view field, std::string fallback) const;
  std::vector<float> get_floats(std::string_view field) const;
  std::vector<std::string> get_strings(std::string_view field) const;
  // A nested object; field names in errors then read "outer.inner".
  std::optional<JsonFields> find_object(std::string_view field) const;
  std::vector<JsonFields> get_objects(std::string_view field) const;  // array of objects
  std::vector<std::string> keys() const;
  // Refuses the object when it has a field of another name.
  void accept_only(std::initializer_list<std::string_view> fields) const;

  [[noreturn]] void refuse(std::string_view field, std::string_view expected) const;

  const std::filesystem::path& path() const { return path_; }

 private:
  JsonFields(std::filesystem::path path, std::string prefix, const nlohmann::json& value);
  [[noreturn]] void refuse_value(std::string_view field,
                                 const nlohmann::json* value,  // null: missing
                                 std::string_view expected) const;
  const nlohmann::json* find(std::string_view field) const;
  const nlohmann::json& get(std::string_view field, std::string_view expected) const;

  std::filesystem::path path_;
  std::string prefix_;
  std::unique_ptr<nlohmann::json> value_;
};

}  // namespace droidspeak
