// Operations on text that methods and filters share.
#pragma once

#include <string>
#include <vector>

#include "text/jinja/characters.h"
#include "text/jinja/value.h"

namespace droidspeak::jinja {

Value stripped(Context& context, const std::string& text, Side side, const std::string* chars);

struct Replacement {
  const std::string& old_text;
  const std::string& new_text;
  int64_t count = -1;  // negative: all
};

Value replace(Context& context, const std::string& text, const Replacement& replacement);

enum class SplitFrom { kLeft, kRight };
// A list. A null separator splits at runs of white space; negative `max_splits` means all.
Value split(Context& context,
            const std::string& text,
            const std::string* separator,
            int64_t max_splits,
            SplitFrom side);

Value join(Context& context, const std::vector<Value>& items, const std::string& separator);

// Last occurrence, npos when there is none.
size_t find_last(const std::string& text, const std::string& wanted);

// str.format without format specifications: {}, {0}, {name}, {{, }}.
Value format_braces(Context& context, const std::string& format, const Arguments& arguments);

}  // namespace droidspeak::jinja
