#include "server/json_writer.h"

#include <cmath>

#include <fmt/format.h>

#include "base/utf8.h"

namespace droidspeak {

namespace {

void append_escaped(std::string& out, char c) {
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c));
  }
}

bool is_plain_ascii(char c) {
  return c >= 0x20 && c != '"' && c != '\\' && c != 0x7f;
}

void append_string(std::string& out, std::string_view value) {
  out += '"';
  size_t position = 0;
  while (position < value.size()) {
    char c = value[position];
    if (is_plain_ascii(c)) {
      out += c;
      ++position;
    } else if (static_cast<unsigned char>(c) < 0x80) {
      append_escaped(out, c);
      ++position;
    } else {
      uint32_t bytes = utf8_char_at(value, position).bytes;
      if (bytes == 0) out += "\xEF\xBF\xBD";
      out += value.substr(position, bytes);
      position += bytes == 0 ? 1 : bytes;
    }
  }
  out += '"';
}

}  // namespace

void JsonWriter::end() {
  if (!drain_) return;
  drain_(out_);
  out_.clear();
}

void JsonWriter::before_value() {
  if (out_.size() >= kPieceBytes) end();
  if (needs_comma_) out_ += ',';
  needs_comma_ = true;
}

JsonWriter& JsonWriter::begin_object() {
  before_value();
  out_ += '{';
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::end_object() {
  out_ += '}';
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::begin_array() {
  before_value();
  out_ += '[';
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::end_array() {
  out_ += ']';
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  before_value();
  append_string(out_, name);
  out_ += ':';
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::text(std::string_view value) {
  before_value();
  append_string(out_, value);
  return *this;
}

JsonWriter& JsonWriter::text_or_null(std::string_view value) {
  return value.empty() ? null() : text(value);
}

JsonWriter& JsonWriter::integer(int64_t value) {
  before_value();
  fmt::format_to(std::back_inserter(out_), "{}", value);
  return *this;
}

JsonWriter& JsonWriter::unsigned_integer(uint64_t value) {
  before_value();
  fmt::format_to(std::back_inserter(out_), "{}", value);
  return *this;
}

JsonWriter& JsonWriter::number(double value) {
  if (!std::isfinite(value)) return null();
  before_value();
  fmt::format_to(std::back_inserter(out_), "{}", value);
  return *this;
}

JsonWriter& JsonWriter::single_number(float value) {
  if (!std::isfinite(value)) return null();
  before_value();
  fmt::format_to(std::back_inserter(out_), "{}", value);
  return *this;
}

JsonWriter& JsonWriter::boolean(bool value) {
  before_value();
  out_ += value ? "true" : "false";
  return *this;
}

JsonWriter& JsonWriter::null() {
  before_value();
  out_ += "null";
  return *this;
}

JsonWriter& JsonWriter::raw(std::string_view json) {
  before_value();
  out_ += json;
  return *this;
}

}  // namespace droidspeak
