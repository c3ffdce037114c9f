// What is let through of a grammar that a client wrote in GBNF, before the library parses it.
#pragma once

#include <string_view>

namespace droidspeak {

// Throws Failure for more than so many bytes, repetitions, names or groups within each other, and
// for what the library reads beyond GBNF: options of rules and macros.
void check_ebnf(std::string_view grammar);

}  // namespace droidspeak
