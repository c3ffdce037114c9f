// SentencePiece models have no list of merges: two symbols join when their text is a token, the
// best score first.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/bpe/merge_table.h"
#include "text/bpe/vocabulary.h"

namespace droidspeak {

// The same joins as a list. `scores` has one value per token. Throws Failure with `source` in front
// when a score is not a number or a token is too long to be one.
std::vector<Merge> merges_from_scores(const std::vector<VocabularyToken>& tokens,
                                      const std::vector<double>& scores,
                                      std::string_view source);

}  // namespace droidspeak
