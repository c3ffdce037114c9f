// One prompt under test: its context as the pair's models see it, the receiver's own answer as the
// measure, and plans compared with it.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "profiler/answer_generator.h"
#include "profiler/context_trial.h"
#include "profiler/data.h"
#include "profiler/divergence.h"
#include "profiler/profile_record.h"

namespace droidspeak {

class PromptTrial {
 public:
  // `prompt` outlives the trial. Whole blocks of the context are shared; its rest counts as suffix.
  PromptTrial(const ModelPair& pair, const QaPrompt& prompt);

  static int32_t shared_tokens(const QaPrompt& prompt) {
    int32_t most = std::min(prompt.context_tokens, static_cast<int32_t>(prompt.tokens.size()) - 1);
    return most / kBlockTokens * kBlockTokens;
  }

  ContextTrial& context() { return context_; }

  // The receiver's greedy answer by full prefill; both models have read the context. It becomes the
  // reference.
  ReferenceAnswer answer_in_full(const AnswerLimits& limits);
  // An answer from an earlier trial of this prompt.
  void set_reference(const ReferenceAnswer& reference);

  std::vector<Divergence> compare(std::span<const ContextMixture> mixtures);
  // Greedy answers; each follows the reference until where `divergences` says it parts.
  std::vector<std::vector<int32_t>> answers(std::span<const ContextMixture> mixtures,
                                            std::span<const Divergence> divergences,
                                            const AnswerLimits& limits);

 private:
  std::span<const int32_t> question() const;
  // Question and reference answer, as rows that predict the answer's tokens.
  SuffixRows scored_rows() const;

  ModelPair pair_;
  const QaPrompt& prompt_;
  ContextTrial context_;
  SuffixScorer scorer_;
  AnswerGenerator generator_;
  std::vector<int32_t> answer_;
  std::vector<int32_t> suffix_;
  std::optional<ReferenceDistributions> reference_;
};

// The answer as text, without its end token.
std::string answer_text(const Tokenizer& tokenizer, std::vector<int32_t> tokens);

}  // namespace droidspeak
