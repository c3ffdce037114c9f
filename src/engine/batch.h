// The rows of one forward pass. All adapters of one base go together; a full checkpoint has
// weights, and so a pass, of its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/scheduler.h"
#include "model/transformer.h"

namespace droidspeak {

struct Batch {
  Transformer* transformer = nullptr;
  std::vector<Step::Work> work = {};  // in the order of their rows, grouped by adapter
  // One per work, then one per draft in the order of the works; what they point to is the
  // sequences'.
  std::vector<BatchSlice> slices = {};
  std::vector<int32_t> tokens = {};  // [rows]

  int64_t num_rows() const { return static_cast<int64_t>(tokens.size()); }

  // Whether nothing is missing to what work[index] does for its sequence.
  bool is_complete(size_t index) const {
    return work[index].sequence->num_missing() == work[index].num_tokens;
  }

  // Whether it is, and its last row gives a token: the next one, or the draft of a scout.
  bool gives_token(size_t index) const {
    return is_complete(index) && !work[index].sequence->is_looking(Looking::Stage::kDraft);
  }
};

// Fewer rows say more about decoding than about prefill.
inline constexpr int32_t kObservedRows = 32;

// Whether the batch's time is that of computing its rows as prompts, and nothing else: no decode
// rows, which cost a pass over the weights whatever their number, nothing loaded that is translated
// on the way, nothing that is looked at, no logits of all rows.
bool is_plain_prefill(const Batch& batch);

std::vector<Batch> build_batches(std::span<const Step::Work> rows);

}  // namespace droidspeak
