// Splits a text into the words that BPE works on: the steps of a tokenizer.json `pre_tokenizer`.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/regex.h"

namespace droidspeak {

// What becomes of a match of a Split step.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
// kGaps: the pattern describes the words; what lies between them is treated as the match.
enum class SplitTarget { kMatches, kGaps };

struct SplitStep {
  Regex pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  SplitTarget target = SplitTarget::kMatches;
};

struct PrefixSpaceStep {};  // a space before each word that does not begin with one

enum class PrependScheme { kFirst, kNever, kAlways };

// Spaces become `replacement`; one is put before a word that has none.
struct MetaspaceStep {
  std::string replacement = "\xE2\x96\x81";
  PrependScheme scheme = PrependScheme::kAlways;
};

using PreTokenizerStep = std::variant<SplitStep, PrefixSpaceStep, MetaspaceStep>;

// Words of one text. `ranges` point into `text`, which is the input or `rewritten`.
struct SplitText {
  std::string_view text;
  std::vector<TextRange> ranges;
  std::string rewritten;
};

enum class TextPosition { kStart, kLater };  // whether a text begins the whole input

class PreTokenizer {
 public:
  PreTokenizer() = default;

  explicit PreTokenizer(std::vector<PreTokenizerStep> steps) : steps_(std::move(steps)) {}

  // Fills `words`, reusing its memory; `text` must outlive it.
  void split(std::string_view text, TextPosition position, SplitText& words) const;

 private:
  std::vector<PreTokenizerStep> steps_;
};

}  // namespace droidspeak
