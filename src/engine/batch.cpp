#include "engine/batch.h"

#include <algorithm>

namespace droidspeak {
namespace {

void add_rows(Batch& batch, const StepPlan::Work& work) {
  const Sequence& sequence = *work.sequence;
  const bool is_complete = sequence.num_missing() == work.num_tokens;
  batch.slices.push_back({{.first_row = batch.num_rows(),
                           .num_rows = work.num_tokens,
                           .first_position = sequence.num_computed,
                           .blocks = sequence.blocks.blocks()},
                          sequence.variant->adapter.get(),
                          sequence.request.wants_prompt_logprobs ? BatchSlice::kAllRows
                          : is_complete                          ? 1
                                                                 : 0});
  auto begin = sequence.tokens.begin() + sequence.num_computed;
  batch.tokens.insert(batch.tokens.end(), begin, begin + work.num_tokens);
  batch.work.push_back(work);
}

}  // namespace

bool is_plain_prefill(const Batch& batch) {
  return batch.num_rows() >= kObservedRows &&
         std::ranges::none_of(batch.work, [](const StepPlan::Work& work) {
           const Sequence& sequence = *work.sequence;
           return sequence.is_decoding() || sequence.reuse != nullptr ||
                  sequence.request.wants_prompt_logprobs;
         });
}

std::vector<Batch> build_batches(std::span<const StepPlan::Work> rows) {
  std::vector<StepPlan::Work> ordered(rows.begin(), rows.end());
  // Rows of one adapter lie together, so that its correction is one product.
  std::stable_sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) {
    return std::less<>()(a.sequence->variant->adapter.get(), b.sequence->variant->adapter.get());
  });
  std::vector<Batch> batches;
  for (const StepPlan::Work& work : ordered) {
    Transformer* transformer = work.sequence->variant->transformer.get();
    auto batch = std::find_if(batches.begin(), batches.end(),
                              [&](const Batch& other) { return other.transformer == transformer; });
    if (batch == batches.end())
      batch = batches.insert(batches.end(), Batch{.transformer = transformer});
    add_rows(*batch, work);
  }
  return batches;
}

}  // namespace droidspeak
