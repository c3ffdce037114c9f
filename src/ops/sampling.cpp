#include "base/check.h"
#include "ops/ops.h"
#include "ops/preconditions.h"
#include "ops/sample_row.h"

namespace droidspeak {

// What is not plain argmax goes over the host.
void Ops::sample(TensorView logits,
                 std::span<const RowSampling> rows,
                 std::span<SampledToken> out) {
  check_sampling(logits, rows, out);
  std::vector<float> values(static_cast<size_t>(logits.columns));
  std::vector<int32_t> best(rows.size());
  for (size_t begin = 0; begin < rows.size();) {  // rows that follow each other go together
    size_t end = begin + 1;
    while (end < rows.size() && rows[end].row == rows[end - 1].row + 1) ++end;
    argmax(logits.row_range(rows[begin].row, rows[end - 1].row + 1),
           std::span(best).subspan(begin, end - begin));
    begin = end;
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (best[i] < 0 || rows[i].is_plain_greedy()) {
      out[i] = {.token = best[i]};
      continue;
    }
    device().to_host(values.data(), logits.row_range(rows[i].row, rows[i].row + 1).data,
                     values.size() * sizeof(float));
    out[i] = sample_row(values, rows[i]);
  }
}

}  // namespace droidspeak
