#include "model/expert_groups.h"

namespace droidspeak {

void group_by_expert(std::span<const int32_t> experts,
                     int32_t per_row,
                     int32_t num_experts,
                     ExpertGroups& out) {
  out.begins.assign(static_cast<size_t>(num_experts) + 1, 0);
  for (int32_t expert : experts) ++out.begins[static_cast<size_t>(expert) + 1];
  for (size_t e = 1; e < out.begins.size(); ++e) out.begins[e] += out.begins[e - 1];
  out.rows.resize(experts.size());
  out.places.resize(experts.size());
  std::vector<int64_t> next(out.begins.begin(), out.begins.end() - 1);
  for (size_t i = 0; i < experts.size(); ++i) {
    const int64_t place = next[static_cast<size_t>(experts[i])]++;
    out.places[i] = static_cast<int32_t>(place);
    out.rows[static_cast<size_t>(place)] = static_cast<int32_t>(i) / per_row;
  }
}

}  // namespace droidspeak
