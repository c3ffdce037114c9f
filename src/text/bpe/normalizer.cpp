#include "text/bpe/normalizer.h"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>

#include <fmt/format.h>
#include <utf8proc.h>

#include "base/check.h"
#include "base/error.h"
#include "base/utf8.h"

namespace droidspeak {
namespace {

utf8proc_option_t options_of(UnicodeForm form) {
  int options = UTF8PROC_STABLE;
  switch (form) {
    case UnicodeForm::kNfc:
      options |= UTF8PROC_COMPOSE;
      break;
    case UnicodeForm::kNfd:
      options |= UTF8PROC_DECOMPOSE;
      break;
    case UnicodeForm::kNfkc:
      options |= UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
      break;
    case UnicodeForm::kNfkd:
      options |= UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
      break;
  }
  return static_cast<utf8proc_option_t>(options);
}

// Code points below these neither change nor take part in a composition with what stands before
// them: ASCII in every form; in NFC everything before the combining marks.
uint32_t first_affected(UnicodeForm form) {
  return form == UnicodeForm::kNfc ? 0x300 : 0x80;
}

bool is_ascii(char c) {
  return static_cast<uint8_t>(c) < 0x80;
}

size_t find_ascii_end(std::string_view text, size_t begin) {
  constexpr uint64_t kHighBits = 0x8080808080808080u;
  for (; begin + 8 <= text.size(); begin += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + begin, 8);
    if ((word & kHighBits) != 0) break;
  }
  while (begin < text.size() && is_ascii(text[begin])) ++begin;
  return begin;
}

bool is_surely_normal(std::string_view text, UnicodeForm form) {
  uint32_t limit = first_affected(form);
  for (size_t i = 0; i < text.size();) {
    Utf8Char c = utf8_char_at(text, i);
    if (c.bytes == 0 || c.code_point >= limit) return false;
    i += c.bytes;
  }
  return true;
}

void append_normalized(std::string& result, std::string_view valid, UnicodeForm form) {
  if (valid.empty()) return;
  utf8proc_uint8_t* mapped = nullptr;
  utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(valid.data()),
                   static_cast<utf8proc_ssize_t>(valid.size()), &mapped, options_of(form));
  std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  if (size == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  check(size >= 0, "valid UTF-8 has every normal form");
  result.append(reinterpret_cast<const char*>(mapped), static_cast<size_t>(size));
}

// Bytes that are not UTF-8 stay.
void append_stretch(std::string& result, std::string_view text, UnicodeForm form) {
  if (is_surely_normal(text, form)) {
    result += text;
    return;
  }
  while (!text.empty()) {
    size_t valid = valid_utf8_prefix(text);
    append_normalized(result, text.substr(0, valid), form);
    size_t invalid = invalid_utf8_run(text, valid);
    result += text.substr(valid, invalid);
    text.remove_prefix(valid + invalid);
  }
}

// Normal forms make a text eleven times as long at most, symbols for spaces three times. Steps of a
// file could double it again and again.
size_t most_bytes_of(std::string_view text) {
  return (size_t{64} << 10) + 16 * text.size();
}

void check_growth(size_t bytes, size_t most) {
  if (bytes <= most) return;
  throw Failure(ErrorCode::kInvalidArgument,
                fmt::format("the tokenizer's normalizer makes more than {} bytes of a text", most));
}

std::string replace_within(std::string_view text,
                           std::string_view from,
                           std::string_view to,
                           size_t most) {
  if (from.empty()) return std::string(text);
  std::string result;
  result.reserve(text.size());
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, done)) {
    result += text.substr(done, at - done);
    result += to;
    check_growth(result.size(), most);
    done = at + from.size();
  }
  result += text.substr(done);
  return result;
}

std::string replace_pattern(std::string_view text, const ReplacePattern& step, size_t most) {
  std::string result;
  size_t done = 0;
  Regex::Matches matches(step.from, text);
  for (TextRange match; matches.next(match); done = match.end) {
    result += text.substr(done, match.begin - done);
    result += step.to;
    check_growth(result.size(), most);
  }
  result += text.substr(done);
  return result;
}

struct ApplyStep {
  std::string_view text;
  size_t most;  // bytes

  std::string operator()(UnicodeForm form) const { return to_unicode_form(text, form); }

  std::string operator()(const PrependText& step) const {
    return text.empty() ? std::string() : step.text + std::string(text);
  }

  std::string operator()(const ReplaceText& step) const {
    return replace_within(text, step.from, step.to, most);
  }

  std::string operator()(const ReplacePattern& step) const {
    return replace_pattern(text, step, most);
  }
};

}  // namespace

std::string Normalizer::apply(std::string_view text) const {
  const size_t most = most_bytes_of(text);
  std::string result(text);
  for (const NormalizerStep& step : steps_) {
    result = std::visit(ApplyStep{result, most}, step);
    check_growth(result.size(), most);
  }
  return result;
}

Normalizer sentencepiece_normalizer(DummyPrefix prefix) {
  std::vector<NormalizerStep> steps;
  if (prefix == DummyPrefix::kAdded) steps.emplace_back(PrependText{std::string(kSpaceSymbol)});
  steps.emplace_back(ReplaceText{" ", std::string(kSpaceSymbol)});
  return Normalizer(std::move(steps));
}

// ASCII neither changes nor combines with what stands before it, so the text is cut into stretches
// of other characters, each with the ASCII character that they may combine with.
std::string to_unicode_form(std::string_view text, UnicodeForm form) {
  std::string result;
  result.reserve(text.size());
  size_t done = 0;
  while (done < text.size()) {
    size_t begin = find_ascii_end(text, done);
    if (begin > done && begin < text.size()) --begin;
    result += text.substr(done, begin - done);
    done = begin;
    if (begin == text.size()) break;
    while (++done < text.size() && !is_ascii(text[done])) {
    }
    append_stretch(result, text.substr(begin, done - begin), form);
  }
  return result;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  return replace_within(text, from, to, std::numeric_limits<size_t>::max());
}

}  // namespace droidspeak
