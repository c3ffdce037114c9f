// Tests: value is name(arguments).
#pragma once

#include <string_view>

#include "text/jinja/value.h"

namespace droidspeak::jinja {

// Throws TemplateError for unknown tests.
bool apply_test(Context& context,
                std::string_view name,
                const Value& input,
                const Arguments& arguments);

}  // namespace droidspeak::jinja
