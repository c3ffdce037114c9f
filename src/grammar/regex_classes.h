// Characters that regular expressions name by a letter.
#pragma once

#include <optional>
#include <string>

#include "grammar/grammar_text.h"

namespace droidspeak {

// \d, \w, \s and their opposites. Engines disagree beyond ASCII: `surely` has what all of them
// count in, `perhaps` what any of them does.
struct Shorthand {
  CharacterSet surely;
  CharacterSet perhaps;
};

std::optional<Shorthand> find_shorthand(char letter);

// Of \n, \t, ...
std::optional<uint32_t> find_control_escape(char letter);

// `character`, whose UTF-8 is `text`, as it is written between the quotes of a JSON string.
std::string inside_json_string(uint32_t character, const std::string& text);

}  // namespace droidspeak
