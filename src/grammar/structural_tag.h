// Free text with parts that follow schemas, in xgrammar's notation: an object with `type`
// "structural_tag" and `format`.
#pragma once

#include <string>
#include <string_view>

#include "grammar/output_format.h"

namespace droidspeak {

// The same with our grammars in place of the schemas and regular expressions. Throws Failure that
// says what cannot be had, and where.
std::string with_own_grammars(std::string_view structural_tag);

// Any text up to </think>, then what `format` means, whose grammar this is: a grammar, or a
// structural tag with our grammars.
std::string tag_after_reasoning(const OutputFormat& format, std::string grammar);

}  // namespace droidspeak
