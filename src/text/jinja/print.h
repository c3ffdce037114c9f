// Values as text, the way Python prints them.
#pragma once

#include <string>

#include "text/jinja/value.h"

namespace droidspeak::jinja {

// str(value): text as it is, the rest as in lists. Undefined prints as nothing.
std::string to_text(Context& context, const Value& value);
// repr(value): text in quotes.
std::string to_repr(Context& context, const Value& value);
// The value itself when it is text already.
Value as_text(Context& context, const Value& value);

// Python's shortest form that reads back the same: 1.0, 0.1, 1e+16, nan.
std::string format_float(double real);

}  // namespace droidspeak::jinja
