#include "server/chat/client_text.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace droidspeak {

namespace {

constexpr std::string_view kMark = "\xEF\xB7\x90";         // U+FDD0
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

std::vector<AddedToken> control_tokens(const Tokenizer& tokenizer) {
  std::vector<AddedToken> tokens;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_special(id)) continue;
    AddedToken token;
    token.id = id;
    token.content = tokenizer.bytes_of(id);
    if (!token.content.empty()) tokens.push_back(std::move(token));
  }
  return tokens;
}

std::string without_marks(std::string_view text) {
  std::string result;
  while (true) {
    size_t mark = text.find(kMark);
    result += text.substr(0, mark);
    if (mark == std::string_view::npos) return result;
    result += kReplacement;
    text.remove_prefix(mark + kMark.size());
  }
}

size_t first_character(std::string_view text) {
  return std::max(utf8_char_at(text, 0).bytes, uint32_t{1});
}

// Where the last character of `text` begins.
size_t last_character(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return begin;
}

}  // namespace

ClientText::ClientText(const Tokenizer& tokenizer)
    : tokenizer_(tokenizer), control_tokens_(control_tokens(tokenizer)) {}

std::string ClientText::mark(std::string text) const {
  if (text.find(kMark) != std::string::npos) text = without_marks(text);
  std::vector<Fragment> fragments;
  control_tokens_.split(text, SpecialTokens::kParse, fragments);
  bool is_plain = fragments.empty() || (fragments.size() == 1 && fragments.front().id < 0);
  if (is_plain) return text;
  std::string marked;
  for (const Fragment& fragment : fragments) {
    std::string_view piece = std::string_view(text).substr(
        fragment.range.begin, fragment.range.end - fragment.range.begin);
    size_t first = fragment.id < 0 ? piece.size() : first_character(piece);
    marked += piece.substr(0, first);
    if (fragment.id < 0) continue;
    marked += kMark;
    marked += piece.substr(first);
  }
  return marked;
}

std::vector<int32_t> ClientText::encode(std::string_view prompt) const {
  std::vector<int32_t> tokens;
  auto add = [&](std::string_view text, SpecialTokens special) {
    if (text.empty()) return;
    std::vector<int32_t> more = tokenizer_.encode(text, special);
    tokens.insert(tokens.end(), more.begin(), more.end());
  };
  while (true) {
    size_t mark = prompt.find(kMark);
    if (mark == std::string_view::npos) break;
    if (mark == 0) {  // the template cut what stood before it
      prompt.remove_prefix(kMark.size());
      continue;
    }
    size_t begin = last_character(prompt.substr(0, mark));
    add(prompt.substr(0, begin), SpecialTokens::kParse);
    // What follows is plain up to the end of the control token's text, or to another mark.
    std::string_view rest = prompt.substr(mark + kMark.size());
    std::string literal(prompt.substr(begin, mark - begin));
    literal += rest.substr(0, std::min(rest.find(kMark), rest.size()));
    std::vector<Fragment> fragments;
    control_tokens_.split(literal, SpecialTokens::kParse, fragments);
    size_t end = fragments.empty() ? literal.size() : fragments.front().range.end;
    if (fragments.empty() || fragments.front().id < 0) end = mark - begin;  // the template cut it
    add(std::string_view(literal).substr(0, end), SpecialTokens::kAsText);
    prompt = rest.substr(end - (mark - begin));
  }
  add(prompt, SpecialTokens::kParse);
  return tokens;
}

}  // namespace droidspeak
