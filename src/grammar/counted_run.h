// Runs of a character in a grammar's text that the library counts instead of unrolling them.
#pragma once

#include <cstddef>
#include <string_view>

namespace droidspeak {

// More often than this a repeated character is counted, which cmake/build_xgrammar.cmake says. What
// fits in a counted run is known beforehand for tokens of at most as many characters.
inline constexpr size_t kUnrolledCharacters = 20;

// Whether a grammar's text has such a run: of a class, in brackets or not, or of a rule that is
// nothing but a class. Takes time in proportion to the text, whatever that is.
bool has_counted_run(std::string_view grammar);

// How many places of a class's run from `low` to `high` times are tried with every token.
size_t num_places_of_run(size_t low, size_t high);

}  // namespace droidspeak
