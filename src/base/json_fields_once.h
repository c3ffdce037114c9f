// Files whose objects have each field once: of two, a parser takes one without a word.
#pragma once

#include <string_view>

namespace droidspeak {

// Throws Failure naming the field that an object of the JSON text has twice. Says nothing of a text
// that is no JSON.
void require_fields_once(std::string_view text);

}  // namespace droidspeak
