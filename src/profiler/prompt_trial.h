// One prompt under test: its context as the pair's models see it, the receiver's own answer as the
// measure, and plans compared with it.
#pragma once

#include <span>
#include <vector>

#include "profiler/answer_generator.h"
#include "profiler/context_trial.h"
#include "profiler/data.h"
#include "profiler/divergence.h"
#include "profiler/mixture_look.h"
#include "profiler/profile_record.h"

namespace droidspeak {

// What trials of a pair use one after the other, so that memory is not asked for again.
struct TrialTools {
  explicit TrialTools(const ModelPair& p)
      : pair(p),
        scorer(p.ops, p.kv, *p.receiver),
        look(p.ops, p.kv, *p.receiver),
        generator(p.ops, p.kv, *p.receiver) {}

  ModelPair pair;
  SuffixScorer scorer;
  MixtureLook look;
  AnswerGenerator generator;
  ContextScratch scratch;
  Tensor hidden;     // rows that predict the reference answer
  Tensor reference;  // their logits
  Tensor compared;   // RowDivergence of the reference with itself, as bytes
  Tensor gold;       // the known answer, as logits that leave nothing to other tokens
};

class PromptTrial {
 public:
  // Both outlive the trial; one trial of the tools at a time. Whole blocks of the context are
  // shared; its rest counts as suffix.
  PromptTrial(TrialTools& tools, const QaPrompt& prompt);

  static int32_t shared_tokens(const QaPrompt& prompt) {
    int32_t most = std::min(prompt.context_tokens, static_cast<int32_t>(prompt.tokens.size()) - 1);
    return most / kBlockTokens * kBlockTokens;
  }

  ContextTrial& context() { return context_; }

  // Whether the K/V memory can hold another recomputed block beside the suffixes.
  bool has_room() const;

  // The receiver's greedy answer by full prefill; both models have read the context. It becomes the
  // reference.
  ReferenceAnswer answer_in_full(const AnswerLimits& limits);
  // An answer from an earlier trial of this prompt.
  void set_reference(const ReferenceAnswer& reference);

  // The answer that the data know; no tokens: none.
  void set_gold(std::vector<int32_t> tokens);

  bool has_gold() const { return !gold_.empty(); }

  // How much the question looks at each context token under a plan's layers.
  std::vector<float> scout(const TriedPlan& tried);
  // Makes the caches of a plan with tokens that are looked at; `mass` is the scout's.
  void look(const TriedPlan& tried, std::span<const float> mass);

  std::vector<Divergence> compare(std::span<const ContextMixture> mixtures);
  // Probability of the known answer behind each mixture, per token: the geometric mean.
  std::vector<double> gold_probabilities(std::span<const ContextMixture> mixtures);
  // Greedy answers; each follows the reference until where `divergences` says it parts.
  std::vector<std::vector<int32_t>> answers(std::span<const ContextMixture> mixtures,
                                            std::span<const Divergence> divergences,
                                            const AnswerLimits& limits);

 private:
  std::span<const int32_t> question() const;
  // Question and answer, without its last token.
  std::vector<int32_t> suffix_with(std::span<const int32_t> answer) const;
  // A suffix, as rows that predict the answer's tokens.
  SuffixRows scored_rows(std::span<const int32_t> suffix) const;

  void set_answer(const std::vector<int32_t>& tokens);
  // Logits of the rows become the reference. Throws Failure when they are not finite.
  void set_reference_rows(TensorView hidden);

  TrialTools& tools_;
  const QaPrompt& prompt_;
  ContextTrial context_;
  std::vector<int32_t> answer_;
  std::vector<int32_t> suffix_;
  std::vector<int32_t> gold_;
  std::vector<int32_t> gold_suffix_;
};

// The answer as text, without its end token.
std::string answer_text(const Tokenizer& tokenizer, std::vector<int32_t> tokens);

}  // namespace droidspeak
