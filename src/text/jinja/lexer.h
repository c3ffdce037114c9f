// Template source to tokens, with Jinja's white space rules as chat templates are written for them
// (trim_blocks and lstrip_blocks on, one trailing newline dropped).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace droidspeak::jinja {

enum class TokenKind {
  kText,         // between tags, never empty
  kOutputBegin,  // {{
  kOutputEnd,    // }}
  kBlockBegin,   // {%
  kBlockEnd,     // %}
  kName,
  kString,  // escapes resolved
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  int line = 1;

  bool is(TokenKind wanted) const { return kind == wanted; }

  bool is_operator(std::string_view wanted) const {
    return is(TokenKind::kOperator) && text == wanted;
  }

  bool is_name(std::string_view wanted) const { return is(TokenKind::kName) && text == wanted; }
};

// Refusal of a template's source.
struct SyntaxError {
  int line = 1;
  std::string message;
};

// Ends with a kEnd token. Throws SyntaxError.
std::vector<Token> tokenize(std::string_view source);

}  // namespace droidspeak::jinja
