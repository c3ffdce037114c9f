// What counts as few rows: products of bf16 rows are made for them, and their kernels overlap.
#pragma once

#include <cstdint>

namespace droidspeak::cuda {

inline constexpr int64_t kMostFewRows = 4;
// With more the input, or what is normed of it, does not fit into shared memory.
inline constexpr int64_t kMostColumnsOfFewRows = 16384;

}  // namespace droidspeak::cuda
