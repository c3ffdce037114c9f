// JSON text to template values and back (the tojson filter, as Python's json.dumps writes).
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace droidspeak::jinja {

// Keeps the order of keys. Throws TemplateError saying where the text is not JSON.
Value parse_json(Context& context, std::string_view text);

enum class KeyOrder { kAsInserted, kSorted };
enum class NonAscii { kAsIs, kEscaped };

struct JsonStyle {
  const std::string* indent = nullptr;  // null: all on one line
  std::string_view item_separator = ", ";
  std::string_view key_separator = ": ";
  KeyOrder keys = KeyOrder::kAsInserted;
  NonAscii non_ascii = NonAscii::kAsIs;
};

// Throws TemplateError for what JSON cannot hold, such as undefined values and macros.
std::string to_json(Context& context, const Value& value, const JsonStyle& style);

}  // namespace droidspeak::jinja
