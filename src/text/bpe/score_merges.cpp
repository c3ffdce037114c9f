#include "text/bpe/score_merges.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "base/utf8.h"

namespace droidspeak {
namespace {

constexpr size_t kLongestToken = 1024;  // bytes; the cost of a token is quadratic

// Position of each token's score in the order of scores, best first; equal scores rank equally.
std::vector<uint32_t> ranks_of(const std::vector<double>& scores) {
  std::vector<double> sorted = scores;
  std::ranges::sort(sorted, std::greater<>());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  std::vector<uint32_t> ranks;
  ranks.reserve(scores.size());
  for (double score : scores) {
    auto found = std::ranges::lower_bound(sorted, score, std::greater<>());
    ranks.push_back(static_cast<uint32_t>(found - sorted.begin()));
  }
  return ranks;
}

}  // namespace

std::vector<Merge> merges_from_scores(const std::vector<VocabularyToken>& tokens,
                                      const std::vector<double>& scores,
                                      std::string_view source) {
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!std::isfinite(scores[i])) {
      throw Failure(
          ErrorCode::kDataCorrupt,
          fmt::format("{}: score of token {} is {}; it must be finite", source, i, scores[i]));
    }
  }
  std::vector<VocabularyToken> normal = tokens;
  for (VocabularyToken& token : normal) {
    if (token.kind != TokenKind::kNormal) token.kind = TokenKind::kUnused;
  }
  Vocabulary vocabulary(std::move(normal));
  std::vector<uint32_t> ranks = ranks_of(scores);
  std::vector<Merge> merges;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    std::string_view text = vocabulary[id].text;
    if (vocabulary[id].kind != TokenKind::kNormal || vocabulary.find(text) != id) continue;
    if (text.size() > kLongestToken) {
      throw Failure(ErrorCode::kDataCorrupt,
                    fmt::format("{}: token {} has {} bytes; at most {} are supported", source, id,
                                text.size(), kLongestToken));
    }
    for (size_t cut = 0; cut < text.size();) {
      cut += std::max<uint32_t>(utf8_char_at(text, cut).bytes, 1);
      int32_t left = cut < text.size() ? vocabulary.find(text.substr(0, cut)) : -1;
      int32_t right = left >= 0 ? vocabulary.find(text.substr(cut)) : -1;
      if (right >= 0) merges.push_back({left, right, id, ranks[static_cast<size_t>(id)]});
    }
  }
  return merges;
}

}  // namespace droidspeak
