#include "text/detokenizer.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace droidspeak {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Length of the longest end of `text` that begins `stop` without being all of it.
size_t held_back_for(std::string_view text, std::string_view stop) {
  if (stop.empty()) return 0;
  for (size_t size = std::min(text.size(), stop.size() - 1); size > 0; --size) {
    if (text.ends_with(stop.substr(0, size))) return size;
  }
  return 0;
}

// Whether byte `size` of `text` belongs to the character that the bytes before it begin.
bool goes_on_at(std::string_view text, size_t size) {
  std::string_view character = text.substr(0, size + 1);
  return valid_utf8_prefix(character) > 0 || is_incomplete_utf8_char(character);
}

}  // namespace

Detokenizer::Detokenizer(const Tokenizer& tokenizer,
                         SpecialTokens special,
                         const std::vector<int32_t>& previous)
    : tokenizer_(tokenizer), special_(special) {
  is_first_ = std::ranges::all_of(previous, [&](int32_t id) { return is_silent(id); });
}

bool Detokenizer::is_silent(int32_t token) const {
  bool is_left_out = special_ == SpecialTokens::kParse && tokenizer_.is_special(token);
  return is_left_out || tokenizer_.bytes_of(token).empty();
}

std::string Detokenizer::push(int32_t token) {
  last_offset_ = num_characters_;
  if (is_silent(token)) return {};
  const size_t held_back = pending_.size();
  if (is_first_) {
    pending_ += tokenizer_.decode({token}, special_);
    is_first_ = false;
  } else {
    pending_ += tokenizer_.bytes_of(token);
  }
  if (held_back > 0 && !goes_on_at(pending_, held_back)) ++last_offset_;
  std::string text = take_whole_characters();
  num_characters_ += count_characters(text);
  return text;
}

std::string Detokenizer::take_whole_characters() {
  std::string text;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    size_t valid = valid_utf8_prefix(rest);
    text += rest.substr(0, valid);
    rest.remove_prefix(valid);
    if (rest.empty() || is_incomplete_utf8_char(rest)) break;
    // One replacement for the longest start of a character that went wrong, as Unicode recommends.
    size_t broken = 1;
    while (broken < rest.size() && is_incomplete_utf8_char(rest.substr(0, broken + 1))) ++broken;
    text += kReplacement;
    rest.remove_prefix(broken);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return text;
}

std::string Detokenizer::finish() {
  std::string text(pending_.empty() ? std::string_view() : kReplacement);
  pending_.clear();
  return text;
}

StopStrings::StopStrings(Shared<std::vector<std::string>> stops) : stops_(std::move(stops)) {}

// The stop that is complete first counts, so the result does not depend on how the text is cut.
StopStrings::Output StopStrings::push(std::string_view text) {
  if (is_stopped_) return {{}, true};
  held_ += text;
  size_t begin = std::string::npos;
  size_t end = std::string::npos;
  for (const std::string& stop : *stops_) {
    size_t at = stop.empty() ? std::string::npos : held_.find(stop);
    if (at == std::string::npos || at + stop.size() > end) continue;
    if (at + stop.size() < end || at < begin) begin = at;
    end = at + stop.size();
  }
  if (end != std::string::npos) {
    std::string found = held_.substr(begin, end - begin);
    held_.resize(begin);
    is_stopped_ = true;
    return {std::exchange(held_, {}), true, std::move(found)};
  }
  size_t held_back = 0;
  for (const std::string& stop : *stops_)
    held_back = std::max(held_back, held_back_for(held_, stop));
  Output output{held_.substr(0, held_.size() - held_back), false};
  held_.erase(0, output.text.size());
  return output;
}

std::string StopStrings::finish() {
  return std::exchange(held_, {});
}

}  // namespace droidspeak
