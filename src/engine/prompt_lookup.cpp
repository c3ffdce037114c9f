#include "engine/prompt_lookup.h"

#include <algorithm>

#include "base/check.h"

namespace droidspeak {
namespace {

constexpr size_t kMatch = 3;  // tokens that must have occurred before
constexpr int32_t kShortDraft = 3;
constexpr int32_t kLongDraft = 8;
constexpr int32_t kFirstRest = 4;
constexpr int32_t kLongestRest = 256;

// Of the tokens before `end`.
uint64_t hash_before(std::span<const int32_t> tokens, size_t end) {
  uint64_t hash = 0;
  for (int32_t token : tokens.subspan(end - kMatch, kMatch))
    hash = (hash ^ static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15ULL;
  return hash;
}

}  // namespace

// The last occurrence is the one that is looked for, so it is not among them yet.
void PromptLookup::index(std::span<const int32_t> tokens) {
  for (size_t end = std::max(num_indexed_, kMatch); end < tokens.size(); ++end)
    behind_[hash_before(tokens, end)] = static_cast<int32_t>(end);
  num_indexed_ = std::max(num_indexed_, tokens.size());
}

std::vector<int32_t> PromptLookup::draft(std::span<const int32_t> tokens, int32_t most) {
  if (resting_ > 0) {
    --resting_;
    return {};
  }
  if (most <= 0 || tokens.size() < kMatch) return {};
  index(tokens);
  auto found = behind_.find(hash_before(tokens, tokens.size()));
  if (found == behind_.end()) return {};
  auto begin = static_cast<size_t>(found->second);
  bool is_match = std::ranges::equal(tokens.subspan(begin - kMatch, kMatch), tokens.last(kMatch));
  if (!is_match) return {};
  if (length_ == 0) length_ = kShortDraft;
  std::span<const int32_t> rest = tokens.subspan(begin);
  rest = rest.first(std::min(rest.size(), static_cast<size_t>(std::min(most, length_))));
  num_drafted_ = rest.size();
  return {rest.begin(), rest.end()};
}

// Wrong drafts cost time, so the more of them the rarer.
void PromptLookup::judge(size_t num_right) {
  check(num_drafted_ > 0 && num_right <= num_drafted_, "a draft was made");
  if (num_right == num_drafted_) {
    length_ = std::min(2 * length_, kLongDraft);
    rest_ = 0;
  } else if (2 * num_right >= num_drafted_) {
    rest_ = 0;
  } else {
    length_ = kShortDraft;
    rest_ = num_right > 0 ? 0 : std::clamp(4 * rest_, kFirstRest, kLongestRest);
    resting_ = rest_;
  }
  num_drafted_ = 0;
}

}  // namespace droidspeak
