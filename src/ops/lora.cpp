#include "base/check.h"
#include "ops/ops.h"

namespace droidspeak {

void Ops::add_lora(std::span<const LoraRows> ranges,
                   TensorView in,
                   TensorView low,
                   TensorView out) {
  for (const LoraRows& range : ranges) {
    const LoraLinear& lora = *range.lora;
    const TensorView hidden =
        low.row_range(range.begin, range.end).column_range(0, lora.down->rows());
    const TensorView corrected = out.row_range(range.begin, range.end);
    linear(*lora.down, in.row_range(range.begin, range.end), hidden);
    for (const LoraLinear::Part& part : lora.parts) {
      linear(*part.up, hidden.column_range(part.first_rank, part.first_rank + part.rank),
             corrected.column_range(part.first_column, part.first_column + part.up->rows()),
             Accumulate::kAdd);
    }
  }
}

}  // namespace droidspeak
