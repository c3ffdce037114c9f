// Filters: value | name(arguments). `safe` and `escape` give plain text: Jinja's Markup type, which
// escapes what is later added to it, is not modelled.
#pragma once

#include <string_view>

#include "text/jinja/methods.h"
#include "text/jinja/value.h"

namespace droidspeak::jinja {

// Throws TemplateError for unknown filters.
Value apply_filter(Context& context,
                   std::string_view name,
                   const Value& input,
                   const Arguments& arguments);
bool is_filter(std::string_view name);

// The families of filters; null when there is none of that name.
NativeFunction find_text_filter(std::string_view name);
NativeFunction find_number_filter(std::string_view name);
NativeFunction find_sequence_filter(std::string_view name);
NativeFunction find_selection_filter(std::string_view name);

}  // namespace droidspeak::jinja
