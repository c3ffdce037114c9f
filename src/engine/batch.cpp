#include "engine/batch.h"

#include <algorithm>

namespace droidspeak {
namespace {

// The next tokens of the sequence, those of a scout among them.
void add_next_rows(Batch& batch, const Sequence& sequence, BatchSlice& slice) {
  if (sequence.wants_every_state()) slice.output_rows = BatchSlice::kAllRows;
  if (sequence.looking && slice.output_rows > 0) slice.mass = &sequence.looking->look->mass();
  auto begin = sequence.tokens.begin() + sequence.num_computed;
  batch.tokens.insert(batch.tokens.end(), begin, begin + slice.sequence.num_rows);
}

void add_draft(Batch& batch, const Sequence& sequence, BatchSlice& slice) {
  slice.sequence.first_position = sequence.prompt_tokens;
  slice.mass = &sequence.looking->look->mass();
  batch.tokens.push_back(sequence.looking->draft);
}

// What is looked at and what follows the context, in one go: in each layer the latter see what the
// former have just stored.
void add_read_rows(Batch& batch, const Sequence& sequence, BatchSlice& slice) {
  auto first = static_cast<size_t>(sequence.looking->num_read);
  auto count = static_cast<size_t>(slice.sequence.num_rows);
  slice.sequence.positions = std::span(sequence.looking->positions).subspan(first, count);
  for (int32_t position : slice.sequence.positions)
    batch.tokens.push_back(sequence.tokens[static_cast<size_t>(position)]);
}

void add_rows(Batch& batch, const Step::Work& work) {
  const Sequence& sequence = *work.sequence;
  const bool is_complete = sequence.num_missing() == work.num_tokens;
  BatchSlice slice{{.first_row = batch.num_rows(),
                    .num_rows = work.num_tokens,
                    .first_position = sequence.num_computed,
                    .blocks = sequence.blocks.blocks(),
                    .answer_begin = sequence.prompt_tokens},
                   sequence.variant->adapter.get(),
                   is_complete ? 1 : 0};
  if (sequence.is_looking(Looking::Stage::kDraft)) {
    add_draft(batch, sequence, slice);
  } else if (sequence.is_looking(Looking::Stage::kRead)) {
    add_read_rows(batch, sequence, slice);
  } else {
    add_next_rows(batch, sequence, slice);
  }
  slice.activate_from(sequence.active_from);
  batch.slices.push_back(slice);
  batch.work.push_back(work);
}

// Every draft is a slice of its own, as it would be a step later: so its row is computed alike.
void add_drafts(Batch& batch) {
  for (size_t i = 0; i < batch.work.size(); ++i) {
    const Sequence& sequence = *batch.work[i].sequence;
    for (size_t j = 0; j < sequence.drafts.size(); ++j) {
      BatchSlice slice = batch.slices[i];
      slice.sequence.first_row = batch.num_rows();
      slice.sequence.first_position += static_cast<int32_t>(j) + 1;
      batch.tokens.push_back(sequence.drafts[j]);
      batch.slices.push_back(slice);
    }
  }
}

}  // namespace

bool is_plain_prefill(const Batch& batch) {
  return batch.num_rows() >= kObservedRows &&
         std::ranges::none_of(batch.work, [](const Step::Work& work) {
           const Sequence& sequence = *work.sequence;
           const bool reads_answer =
               sequence.num_computed + work.num_tokens > sequence.prompt_tokens;
           return reads_answer || sequence.reuse != nullptr || sequence.looking ||
                  sequence.reads_every_row();
         });
}

std::vector<Batch> build_batches(std::span<const Step::Work> rows) {
  std::vector<Step::Work> ordered(rows.begin(), rows.end());
  // Rows of one adapter lie together, so that its correction is one product.
  std::stable_sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) {
    return std::less<>()(a.sequence->variant->adapter.get(), b.sequence->variant->adapter.get());
  });
  std::vector<Batch> batches;
  for (const Step::Work& work : ordered) {
    Transformer* transformer = work.sequence->variant->transformer.get();
    auto batch = std::find_if(batches.begin(), batches.end(),
                              [&](const Batch& other) { return other.transformer == transformer; });
    if (batch == batches.end())
      batch = batches.insert(batches.end(), Batch{.transformer = transformer});
    add_rows(*batch, work);
  }
  for (Batch& batch : batches) add_drafts(batch);
  return batches;
}

}  // namespace droidspeak
