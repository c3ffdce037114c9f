// Template source to a block of statements.
#pragma once

#include <string_view>

#include "text/jinja/ast.h"

namespace droidspeak::jinja {

// Throws SyntaxError (lexer.h).
Block parse_template(std::string_view source);

}  // namespace droidspeak::jinja
