// Rows of a batch in the order of the experts that they go to, so that each expert is one product.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace droidspeak {

struct ExpertGroups {
  std::vector<int32_t> rows;    // of each place; an expert's lie together and ascend
  std::vector<int32_t> places;  // [rows, per_row] of each row's choices
  std::vector<int64_t> begins;  // [experts + 1]: expert e has the places [begins[e], begins[e + 1])
};

// experts: [rows, per_row], each less than num_experts.
void group_by_expert(std::span<const int32_t> experts,
                     int32_t per_row,
                     int32_t num_experts,
                     ExpertGroups& out);

}  // namespace droidspeak
