// A PCRE2 pattern, JIT-compiled, over UTF-8 with Unicode properties. Immutable; safe to share.
// Patterns come from model files, so their length and the work per match are limited.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace droidspeak {

struct TextRange {
  size_t begin = 0;
  size_t end = 0;  // half-open

  size_t size() const { return end - begin; }

  bool operator==(const TextRange&) const = default;
};

struct RegexLimits {
  size_t pattern_bytes = 16 * 1024;
  uint32_t match_steps = 20'000'000;  // as PCRE2 counts them: about 0.1 s
};

class Regex {
 public:
  // Throws Failure (invalid argument) with PCRE2's message and the offset.
  explicit Regex(std::string_view pattern, const RegexLimits& limits = {});
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Walks over the matches of one text. The regex and the text must outlive it.
  class Matches {
   public:
    Matches(const Regex& regex, std::string_view text);
    ~Matches();
    Matches(const Matches&) = delete;
    Matches& operator=(const Matches&) = delete;

    // Starts over on another text.
    void reset(std::string_view text);
    // The next match that is not empty; false at the end. Bytes that are not UTF-8 match nothing.
    // Throws Failure when the pattern needs more work than the limit.
    bool next(TextRange& match);

   private:
    bool next_in_valid_part(TextRange& match);
    int match_from(size_t position);
    void find_valid_part(size_t position);

    const Regex& regex_;
    std::string_view text_;
    TextRange valid_part_;  // of text_, holds only whole characters
    size_t position_ = 0;
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  std::string pattern_;
  std::unique_ptr<Code> code_;
};

// `\s` and `\S` spelled out as Unicode White_Space, which PCRE2's own `\s` exceeds by U+180E.
std::string with_unicode_white_space(std::string_view pattern);

}  // namespace droidspeak
