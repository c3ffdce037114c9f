// Free text with parts that follow schemas, in xgrammar's notation: an object with `type`
// "structural_tag" and `format`.
#pragma once

#include <string>
#include <string_view>

namespace droidspeak {

// The same with our grammars in place of the schemas and regular expressions. Throws Failure that
// says what cannot be had, and where.
std::string with_own_grammars(std::string_view structural_tag);

}  // namespace droidspeak
