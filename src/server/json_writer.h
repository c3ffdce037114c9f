// Writes JSON text front to back, without a tree in between: answers are made once per token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace droidspeak {

// Commas are set by themselves. The caller opens and closes what belongs together.
class JsonWriter {
 public:
  using Drain = std::function<void(std::string_view)>;

  JsonWriter() = default;

  // Hands out what is written in pieces of some kPieceBytes instead of keeping it; end() gives the
  // rest.
  explicit JsonWriter(Drain drain) : drain_(std::move(drain)) {}

  static constexpr size_t kPieceBytes = size_t{64} << 10;

  JsonWriter& begin_object();
  JsonWriter& end_object();
  JsonWriter& begin_array();
  JsonWriter& end_array();
  JsonWriter& key(std::string_view name);

  // Invalid UTF-8 becomes U+FFFD.
  JsonWriter& text(std::string_view value);
  JsonWriter& text_or_null(std::string_view value);  // empty: null
  JsonWriter& integer(int64_t value);
  JsonWriter& unsigned_integer(uint64_t value);
  JsonWriter& number(double value);        // not finite: null
  JsonWriter& single_number(float value);  // shortest text that reads back as this float
  JsonWriter& boolean(bool value);         // NOLINT: the value itself, not a switch
  JsonWriter& null();
  JsonWriter& raw(std::string_view json);  // a value that is JSON already

  std::string take() && { return std::move(out_); }

  void end();

 private:
  void before_value();

  Drain drain_;  // empty: everything is kept
  std::string out_;
  bool needs_comma_ = false;
};

}  // namespace droidspeak
