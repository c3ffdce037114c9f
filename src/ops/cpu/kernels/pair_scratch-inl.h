// What a task of prefill attention in pairs of 16 bits keeps (attention_pairs-inl.h).
#if defined(DROIDSPEAK_PAIR_SCRATCH_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef DROIDSPEAK_PAIR_SCRATCH_TOGGLE
#undef DROIDSPEAK_PAIR_SCRATCH_TOGGLE
#else
#define DROIDSPEAK_PAIR_SCRATCH_TOGGLE
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

#include "ops/cpu/kernels.h"
#include "ops/cpu/kernels/pair_products-inl.h"

#if HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE::pairs {

inline constexpr int kTaskRows = 8 * kRows;  // about so many share a tile of keys

inline int64_t round_up_to(int64_t size, int64_t step) {
  return (size + step - 1) / step * step;
}

// Memory of a task of at most `most_rows` rows; `width` is head_dim with zeros behind it, in
// whole pairs of vectors.
struct Scratch {
  float* scores;         // [kKeys][kRows], then weights
  float* values;         // [kKeys][width], where some row sees a part of the tile
  float* sums;           // [groups][width][kRows]
  float* maxima;         // [groups][kRows]
  float* totals;         // [groups][kRows]: sums of the exponentials
  float* query_units;    // [groups][kRows]
  int32_t* first;        // [groups][kRows]: first key that the row sees
  int32_t* last;         // [groups][kRows]: last key that the row sees
  int32_t* query_pairs;  // [groups][width / 2][kRows]
  PairTile tile;
  Weights weights;

  Scratch(int64_t most_rows, int64_t head_dim, std::byte* memory) {
    bytes_ = (reinterpret_cast<uintptr_t>(memory) + 63) / 64 * 64;
    lay_out(most_rows, head_dim);
  }

  static size_t bytes(int64_t most_rows, int64_t head_dim) {
    Scratch scratch(most_rows, head_dim, nullptr);
    return scratch.bytes_ + 64;
  }

  static int64_t width_of(int64_t head_dim) { return round_up_to(head_dim, 2 * kLanes); }

 private:
  void lay_out(int64_t most_rows, int64_t head_dim) {
    const int64_t rows = round_up_to(most_rows, kRows);
    const int64_t width = width_of(head_dim);
    take(scores, kKeys * kRows);
    take(weights.pairs, kKeys / 2 * kRows);
    take(weights.units, kSteps * kRows);
    take(weights.factors, kRows);
    take(tile.keys, kKeys * width);
    take(tile.key_units, kKeys);
    take(tile.values, kKeys / 2 * width);
    take(tile.value_units, kSteps * width);
    take(values, kKeys * width);
    take(query_pairs, rows * width / 2);
    take(sums, rows * width);
    take(maxima, rows);
    take(totals, rows);
    take(query_units, rows);
    take(first, rows);
    take(last, rows);
  }

  template <class T>
  void take(T*& to, int64_t count) {
    to = reinterpret_cast<T*>(bytes_);
    bytes_ += static_cast<uintptr_t>(count) * sizeof(T);
  }

  uintptr_t bytes_ = 0;
};

inline int32_t rows_of_task(const AttentionProblem& problem) {
  return std::max(1, kTaskRows / problem.group());
}

inline size_t scratch_bytes(const AttentionProblem& problem) {
  const int64_t most_rows = static_cast<int64_t>(rows_of_task(problem)) * problem.group();
  return Scratch::bytes(most_rows, problem.kv.head_dim);
}

}  // namespace droidspeak::cpu::HWY_NAMESPACE::pairs

HWY_AFTER_NAMESPACE();

#endif

#endif
