// What one prompt says of plans: how far they are from the receiver's own answer, how probable they
// leave the known answer, and the score of what they answer.
#pragma once

#include <map>
#include <vector>

#include "profiler/metrics.h"
#include "profiler/prompt_trial.h"

namespace droidspeak {

struct MeasurementOptions {
  const Tokenizer& tokenizer;
  Metric metric = Metric::kNone;
  AnswerLimits limits;
};

class PlanMeasurement {
 public:
  // All outlive this; one measurement of the tools at a time.
  PlanMeasurement(TrialTools& tools, const QaPrompt& prompt, const MeasurementOptions& options);

  PromptTrial& trial() { return trial_; }

  ContextTrial& context() { return trial_.context(); }

  // The receiver's own answer, score and gold probability by full prefill, once both models have
  // read the context. It becomes the reference.
  ReferenceAnswer answer_in_full();

  // Divergence and gold probability of plans whose caches are there.
  void compare(const std::vector<TriedPlan>& plans);
  // The same, and the score of greedy answers where there is a metric and a known answer.
  void compare_and_score(const std::vector<TriedPlan>& plans);

  // Plans of the same layers, `base`, with tokens and without; one scout serves all shares. E is
  // there, and translated K/V where `translator` is needed.
  void measure_group(const TriedPlan& base,
                     const std::vector<TriedPlan>& plans,
                     const Translator* translator);

  // Everything measured joins the records as that of context number `context`; plans that already
  // have it from an earlier pass keep that.
  void add_to(PlanRecords& records, int32_t context) const;

 private:
  std::vector<ContextMixture> mixtures_of(const std::vector<TriedPlan>& plans);

  const QaPrompt& prompt_;
  const MeasurementOptions& options_;
  PromptTrial trial_;
  std::map<TriedPlan, Divergence> divergences_;
  std::map<TriedPlan, double> gold_probabilities_;  // empty without a known answer
  std::map<TriedPlan, double> scores_;              // likewise
};

}  // namespace droidspeak
