#include "text/bpe/added_tokens.h"

#include <algorithm>

#include <fmt/format.h>
#include <utf8proc.h>

#include "base/error.h"
#include "base/utf8.h"

namespace droidspeak {
namespace {

constexpr size_t kMostAddedBytes = size_t{4} << 20;  // a node each; known files have 100 KB
constexpr size_t kLongestAdded = 1024;               // bytes: looked for at every place of a text

bool is_word_character(uint32_t code_point) {
  auto c = static_cast<utf8proc_int32_t>(code_point);
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

// The character that ends at `end` (> 0); zero bytes when it is not valid.
Utf8Char char_before(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80)
    --begin;
  Utf8Char c = utf8_char_at(text, begin);
  return c.bytes == end - begin ? c : Utf8Char{};
}

size_t skip_white_space_back(std::string_view text, size_t end) {
  while (end > 0) {
    Utf8Char c = char_before(text, end);
    if (c.bytes == 0 || !is_white_space(c.code_point)) break;
    end -= c.bytes;
  }
  return end;
}

size_t skip_white_space(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    Utf8Char c = utf8_char_at(text, begin);
    if (c.bytes == 0 || !is_white_space(c.code_point)) break;
    begin += c.bytes;
  }
  return begin;
}

}  // namespace

void check_added_tokens(const std::vector<AddedToken>& tokens, std::string_view where) {
  size_t bytes = 0;
  for (const AddedToken& token : tokens) {
    bytes += token.content.size();
    if (token.content.size() > kLongestAdded)
      throw Failure(ErrorCode::kDataCorrupt,
                    fmt::format("{}: token {} has {} bytes; at most {} are supported", where,
                                token.id, token.content.size(), kLongestAdded));
  }
  if (bytes <= kMostAddedBytes) return;
  throw Failure(ErrorCode::kDataCorrupt,
                fmt::format("{}: {} tokens have {} bytes in all; at most {} are supported", where,
                            tokens.size(), bytes, kMostAddedBytes));
}

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  nodes_.emplace_back();
  for (size_t i = 0; i < tokens_.size(); ++i) insert(static_cast<int32_t>(i));
}

void AddedTokenMatcher::insert(int32_t index) {
  const std::string& content = tokens_[static_cast<size_t>(index)].content;
  begins_[static_cast<uint8_t>(content[0])] = true;
  int32_t node = 0;
  for (char c : content) {
    auto byte = static_cast<uint8_t>(c);
    int32_t child = child_of(node, byte);
    if (child < 0) {
      child = static_cast<int32_t>(nodes_.size());
      nodes_.emplace_back();
      auto& children = nodes_[static_cast<size_t>(node)].children;
      std::pair<uint8_t, int32_t> entry(byte, child);
      children.insert(std::ranges::lower_bound(children, entry), entry);
    }
    node = child;
  }
  nodes_[static_cast<size_t>(node)].token = index;
}

int32_t AddedTokenMatcher::child_of(int32_t node, uint8_t byte) const {
  const auto& children = nodes_[static_cast<size_t>(node)].children;
  auto found = std::ranges::lower_bound(children, byte, {}, &std::pair<uint8_t, int32_t>::first);
  return found == children.end() || found->first != byte ? -1 : found->second;
}

int32_t AddedTokenMatcher::longest_at(std::string_view text, size_t position) const {
  int32_t longest = -1;
  int32_t node = 0;
  for (size_t i = position; i < text.size(); ++i) {
    node = child_of(node, static_cast<uint8_t>(text[i]));
    if (node < 0) break;
    int32_t token = nodes_[static_cast<size_t>(node)].token;
    if (token >= 0) longest = token;
  }
  return longest;
}

bool AddedTokenMatcher::accepts(const AddedToken& token,
                                std::string_view text,
                                TextRange match) const {
  if (!token.is_single_word) return true;
  if (match.begin > 0) {
    Utf8Char c = char_before(text, match.begin);
    if (c.bytes > 0 && is_word_character(c.code_point)) return false;
  }
  if (match.end < text.size()) {
    Utf8Char c = utf8_char_at(text, match.end);
    if (c.bytes > 0 && is_word_character(c.code_point)) return false;
  }
  return true;
}

void AddedTokenMatcher::split(std::string_view text,
                              SpecialTokens special,
                              std::vector<Fragment>& fragments) const {
  size_t done = 0;
  size_t position = 0;
  while (position < text.size()) {
    int32_t index = -1;
    if (begins_[static_cast<uint8_t>(text[position])]) index = longest_at(text, position);
    if (index < 0) {
      ++position;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    TextRange match{position, position + token.content.size()};
    position = match.end;
    bool is_text = token.is_special && special == SpecialTokens::kAsText;
    if (is_text || !accepts(token, text, match)) continue;
    if (token.strips_left) match.begin = std::max(done, skip_white_space_back(text, match.begin));
    if (token.strips_right) match.end = skip_white_space(text, match.end);
    if (done < match.begin) fragments.push_back({{done, match.begin}, -1});
    fragments.push_back({match, token.id});
    done = match.end;
    position = std::max(position, done);
  }
  if (done < text.size()) fragments.push_back({{done, text.size()}, -1});
}

}  // namespace droidspeak
