// Global functions of templates: range, dict, namespace, raise_exception, strftime_now.
#pragma once

#include <string_view>

#include "text/jinja/value.h"

namespace droidspeak::jinja {

// Null when there is none of that name.
NativeFunction find_function(std::string_view name);

// Throws TemplateError for names that begin with an underscore.
void require_attribute_name(std::string_view name);

}  // namespace droidspeak::jinja
