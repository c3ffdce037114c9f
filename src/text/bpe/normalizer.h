// What happens to a text before it is split: Unicode normal forms and replacements, in order.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/regex.h"

namespace droidspeak {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

struct PrependText {
  std::string text;  // put before a text that is not empty
};

struct ReplaceText {
  std::string from;
  std::string to;
};

struct ReplacePattern {
  Regex from;
  std::string to;
};

using NormalizerStep = std::variant<UnicodeForm, PrependText, ReplaceText, ReplacePattern>;

class Normalizer {
 public:
  Normalizer() = default;

  explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

  bool is_empty() const { return steps_.empty(); }

  // Throws Failure when the steps make it many times as long.
  std::string apply(std::string_view text) const;

 private:
  std::vector<NormalizerStep> steps_;
};

// Stands for a space in SentencePiece vocabularies: U+2581.
inline constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";

enum class DummyPrefix { kAdded, kNone };

// Spaces as kSpaceSymbol and, with a dummy prefix, one more before the text.
Normalizer sentencepiece_normalizer(DummyPrefix prefix);

// Bytes that are not UTF-8 stay as they are.
std::string to_unicode_form(std::string_view text, UnicodeForm form);

std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

}  // namespace droidspeak
