#include "grammar/regex_classes.h"

#include <fmt/format.h>

#include "grammar/regex_grammar.h"

namespace droidspeak {
namespace {

const CharacterRange kBeyondAscii = {0x80, 0x10FFFF};

Shorthand digits() {
  return {{{'0', '9'}}, {{'0', '9'}, kBeyondAscii}};
}

Shorthand word_characters() {
  CharacterSet ascii = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  CharacterSet wide = ascii;
  wide.push_back(kBeyondAscii);
  return {ascii, wide};
}

Shorthand spaces() {
  return {{{'\t', '\r'}, {' ', ' '}},
          {{'\t', '\r'},
           {0x1c, ' '},
           {0x85, 0x85},
           {0xa0, 0xa0},
           {0x1680, 0x1680},
           {0x180e, 0x180e},
           {0x2000, 0x200b},
           {0x2028, 0x2029},
           {0x202f, 0x202f},
           {0x205f, 0x205f},
           {0x3000, 0x3000},
           {0xfeff, 0xfeff}}};
}

Shorthand opposite(const Shorthand& of) {
  return {complement(of.perhaps), complement(of.surely)};
}

}  // namespace

std::optional<Shorthand> find_shorthand(char letter) {
  switch (letter) {
    case 'd':
      return digits();
    case 'D':
      return opposite(digits());
    case 'w':
      return word_characters();
    case 'W':
      return opposite(word_characters());
    case 's':
      return spaces();
    case 'S':
      return opposite(spaces());
    default:
      return std::nullopt;
  }
}

std::optional<uint32_t> find_control_escape(char letter) {
  switch (letter) {
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case 'r':
      return '\r';
    case 'f':
      return '\f';
    case 'v':
      return '\v';
    default:
      return std::nullopt;
  }
}

const CharacterSet& plain_json_characters() {
  static const CharacterSet set = complement({{0, 0x1f}, {'"', '"'}, {'\\', '\\'}});
  return set;
}

std::string inside_json_string(uint32_t character, const std::string& text) {
  if (character == '"' || character == '\\') return "\\" + text;
  if (character < 0x20) return fmt::format("\\u{:04x}", character);
  return text;
}

}  // namespace droidspeak
