#include "server/prompt_offsets.h"

#include <algorithm>

#include "base/utf8.h"

namespace droidspeak {

namespace {

// How many bytes of a text may stand between two tokens.
constexpr size_t kMaxGap = 64;

}  // namespace

size_t PromptOffsets::push(std::string_view bytes) {
  const Place place = find(bytes);
  is_first_ = false;
  position_ += place.gap;
  while (character_ < text_.size()) {
    size_t size = std::max(utf8_char_at(text_, character_).bytes, uint32_t{1});
    if (character_ + size > position_) break;
    character_ += size;
    ++num_characters_;
  }
  position_ += place.size;
  return num_characters_;
}

PromptOffsets::Place PromptOffsets::find(std::string_view bytes) const {
  std::string_view rest = text_.substr(position_);
  if (rest.starts_with(bytes)) return {0, bytes.size()};
  if (bytes.starts_with(' ') && rest.starts_with(bytes.substr(1))) return {0, bytes.size() - 1};
  size_t gap = is_first_ ? std::string_view::npos : rest.substr(0, kMaxGap).find(bytes);
  if (gap == std::string_view::npos) return {};
  return {gap, bytes.size()};
}

}  // namespace droidspeak
