// Methods of text, dicts, sequences and the loop variable. Those that would change their object are
// refused, as in Jinja's immutable sandbox.
#pragma once

#include <string_view>

#include "text/jinja/value.h"

namespace droidspeak::jinja {

// The bound method, an Undefined that says why not for refused ones, or nothing.
std::optional<Value> find_method(const Value& object, std::string_view name);

struct NamedFunction {
  std::string_view name;
  NativeFunction function;
};

// Null when there is none of that name.
NativeFunction find_text_method(std::string_view name);

}  // namespace droidspeak::jinja
