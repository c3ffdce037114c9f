#include "text/bpe/pre_tokenizer.h"

#include <utility>

#include "text/bpe/normalizer.h"

namespace droidspeak {

namespace {

// A stretch of a text: a match, or what lies between two.
struct Stretch {
  TextRange range;
  bool is_match;
};

// Collects words from stretches in order, by the rules of a behaviour.
class WordCollector {
 public:
  WordCollector(SplitBehavior behavior, std::vector<TextRange>& words)
      : behavior_(behavior), words_(words) {}

  void start_word() {
    previous_was_match_ = false;
    previous_was_any_ = false;
  }

  void add(Stretch stretch) {
    if (stretch.range.size() == 0) return;
    bool joins = false;
    switch (behavior_) {
      case SplitBehavior::kRemoved:
      case SplitBehavior::kIsolated:
        break;
      case SplitBehavior::kMergedWithPrevious:
        joins = stretch.is_match && previous_was_any_ && !previous_was_match_;
        break;
      case SplitBehavior::kMergedWithNext:
        joins = !stretch.is_match && previous_was_any_ && previous_was_match_;
        break;
      case SplitBehavior::kContiguous:
        joins = previous_was_any_ && stretch.is_match == previous_was_match_;
        break;
    }
    previous_was_any_ = true;
    previous_was_match_ = stretch.is_match;
    if (behavior_ == SplitBehavior::kRemoved && stretch.is_match) return;
    if (joins) {
      words_.back().end = stretch.range.end;
    } else {
      words_.push_back(stretch.range);
    }
  }

 private:
  SplitBehavior behavior_;
  std::vector<TextRange>& words_;
  bool previous_was_match_ = false;
  bool previous_was_any_ = false;
};

void apply_split(const SplitStep& step, SplitText& words) {
  std::vector<TextRange> result;
  result.reserve(words.ranges.size() + words.text.size() / 4);
  WordCollector collector(step.behavior, result);
  bool match_is_match = step.target == SplitTarget::kMatches;
  Regex::Matches matches(step.pattern, {});
  for (TextRange word : words.ranges) {
    collector.start_word();
    matches.reset(words.text.substr(word.begin, word.size()));
    size_t done = word.begin;
    for (TextRange match; matches.next(match); done = word.begin + match.end) {
      collector.add({{done, word.begin + match.begin}, !match_is_match});
      collector.add({{word.begin + match.begin, word.begin + match.end}, match_is_match});
    }
    collector.add({{done, word.end}, !match_is_match});
  }
  words.ranges = std::move(result);
}

// Replaces every word by what `rewrite(word text)` returns.
template <class Rewrite>
void rewrite_words(SplitText& words, Rewrite rewrite) {
  std::string text;
  text.reserve(words.text.size() + words.ranges.size());
  for (TextRange& word : words.ranges) {
    size_t begin = text.size();
    text += rewrite(words.text.substr(word.begin, word.size()));
    word = {begin, text.size()};
  }
  words.rewritten = std::move(text);
  words.text = words.rewritten;
}

void apply_prefix_space(SplitText& words) {
  rewrite_words(words, [](std::string_view word) {
    std::string result(word.starts_with(' ') ? 0 : 1, ' ');
    result += word;
    return result;
  });
}

void apply_metaspace(const MetaspaceStep& step, TextPosition position, SplitText& words) {
  bool is_first = position == TextPosition::kStart;
  rewrite_words(words, [&](std::string_view word) {
    std::string replaced = replace_all(word, " ", step.replacement);
    bool wants_prefix =
        step.scheme == PrependScheme::kAlways || (step.scheme == PrependScheme::kFirst && is_first);
    is_first = false;
    if (wants_prefix && !replaced.starts_with(step.replacement)) {
      replaced.insert(0, step.replacement);
    }
    return replaced;
  });
}

}  // namespace

void PreTokenizer::split(std::string_view text, TextPosition position, SplitText& words) const {
  words.text = text;
  words.ranges.clear();
  if (text.empty()) return;
  words.ranges.push_back({0, text.size()});
  for (const PreTokenizerStep& step : steps_) {
    if (const auto* split = std::get_if<SplitStep>(&step)) {
      apply_split(*split, words);
    } else if (const auto* metaspace = std::get_if<MetaspaceStep>(&step)) {
      apply_metaspace(*metaspace, position, words);
    } else {
      apply_prefix_space(words);
    }
  }
}

}  // namespace droidspeak
