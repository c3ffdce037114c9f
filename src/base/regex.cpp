#include "base/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <pcre2.h>

#include "base/error.h"
#include "base/utf8.h"

namespace droidspeak {
namespace {

constexpr uint32_t kHeapLimitKib = 64 * 1024;
constexpr std::string_view kWhiteSpaceClass = "\\t-\\r\\x{85}\\p{Z}";

std::string error_text(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

std::string shortened(std::string_view pattern) {
  constexpr size_t kShown = 80;
  return pattern.size() <= kShown ? std::string(pattern)
                                  : std::string(pattern.substr(0, kShown)) + "...";
}

PCRE2_SPTR units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  pcre2_match_context* limits = nullptr;
  bool has_jit = false;

  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  ~Code() {
    pcre2_match_context_free(limits);
    pcre2_code_free(code);
  }
};

struct Regex::Matches::State {
  pcre2_match_data* match = nullptr;

  explicit State(const pcre2_code* code)
      : match(pcre2_match_data_create_from_pattern(code, nullptr)) {
    if (match == nullptr) throw std::bad_alloc();
  }

  State(const State&) = delete;
  State& operator=(const State&) = delete;

  ~State() { pcre2_match_data_free(match); }
};

Regex::Regex(std::string_view pattern, const RegexLimits& limits)
    : pattern_(pattern), code_(std::make_unique<Code>()) {
  if (pattern.size() > limits.pattern_bytes) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("pattern of {} bytes; at most {} are supported", pattern.size(),
                              limits.pattern_bytes));
  }
  std::string source = with_unicode_white_space(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  code_->code = pcre2_compile(units(source), source.size(), options, &error, &offset, nullptr);
  if (code_->code == nullptr) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("pattern '{}' is not a valid regular expression: {} at offset {}",
                              shortened(source), error_text(error), offset));
  }
  // No JIT on this machine is not an error: the interpreter gives the same matches.
  code_->has_jit = pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE) == 0;
  code_->limits = pcre2_match_context_create(nullptr);
  if (code_->limits == nullptr) throw std::bad_alloc();
  pcre2_set_match_limit(code_->limits, limits.match_steps);
  pcre2_set_heap_limit(code_->limits, kHeapLimitKib);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

Regex::Matches::Matches(const Regex& regex, std::string_view text)
    : regex_(regex), state_(std::make_unique<State>(regex.code_->code)) {
  reset(text);
}

Regex::Matches::~Matches() = default;

void Regex::Matches::reset(std::string_view text) {
  text_ = text;
  find_valid_part(0);
}

void Regex::Matches::find_valid_part(size_t position) {
  position_ = position;
  valid_part_ = {position, position + valid_utf8_prefix(text_.substr(position))};
}

bool Regex::Matches::next(TextRange& match) {
  while (true) {
    if (next_in_valid_part(match)) return true;
    if (valid_part_.end == text_.size()) return false;
    find_valid_part(valid_part_.end + invalid_utf8_run(text_, valid_part_.end));
  }
}

bool Regex::Matches::next_in_valid_part(TextRange& match) {
  while (position_ < valid_part_.end) {
    if (match_from(position_ - valid_part_.begin) < 0) return false;
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(state_->match);
    size_t begin = valid_part_.begin + ends[0];
    size_t end = valid_part_.begin + ends[1];
    if (end > begin) {
      match = {begin, end};
      position_ = end;
      return true;
    }
    size_t after = std::max(begin, position_);
    if (after >= valid_part_.end) return false;
    position_ = after + utf8_char_at(text_, after).bytes;
  }
  return false;
}

// The number PCRE2 returns: negative for no match, never another error.
int Regex::Matches::match_from(size_t position) {
  const Code& code = *regex_.code_;
  PCRE2_SPTR subject = units(text_) + valid_part_.begin;
  size_t size = valid_part_.size();
  int result = PCRE2_ERROR_JIT_STACKLIMIT;
  if (code.has_jit) {
    result = pcre2_jit_match(code.code, subject, size, position, 0, state_->match, code.limits);
  }
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
    result = pcre2_match(code.code, subject, size, position, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         state_->match, code.limits);
  }
  if (result < 0 && result != PCRE2_ERROR_NOMATCH) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("pattern '{}' cannot be matched: {}", shortened(regex_.pattern_),
                              error_text(result)));
  }
  return result;
}

std::string with_unicode_white_space(std::string_view pattern) {
  std::string result;
  result.reserve(pattern.size() + 64);
  int depth = 0;  // of character classes: 0 or 1, since a '[' inside a class is literal
  for (size_t i = 0; i < pattern.size(); ++i) {
    char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      char escaped = pattern[++i];
      if (escaped == 's' && depth == 1) {
        result += kWhiteSpaceClass;
      } else if ((escaped == 's' || escaped == 'S') && depth == 0) {
        result += fmt::format("[{}{}]", escaped == 'S' ? "^" : "", kWhiteSpaceClass);
      } else {
        result += {c, escaped};
      }
      continue;
    }
    bool is_first_in_class =
        depth == 1 && i > 0 &&
        (pattern[i - 1] == '[' || (pattern[i - 1] == '^' && i > 1 && pattern[i - 2] == '['));
    if (c == '[') depth = 1;
    if (c == ']' && !is_first_in_class) depth = 0;
    result += c;
  }
  return result;
}

}  // namespace droidspeak
