// 16 packed rows in one warp: their queries, and what the keys so far have given. The kernels of
// attention_tiles.h that bring keys in different ways have this in common, so a split gives the
// same bits in each of them.
#pragma once

#include <cmath>

#include "ops/cuda/device_code/tensor_core.cuh"

namespace droidspeak::cuda {

// What scores go through besides being scaled.
struct ScoreRules {
  float scale = 1;     // log2(e) included
  float soft_cap = 0;  // of a score before it is scaled; 0: none
  int32_t window = 0;  // 0: none
};

// A tile's `address(key, column)` is where eight elements of a key begin in shared memory. The warp
// takes kKeys keys of it from `first_key` on.
template <class T, int kHeadDim, int kKeys>
class WarpRows {
 public:
  using Scores = float[kKeys / 8][4];

  __device__ WarpRows() : lane_(static_cast<int>(threadIdx.x) % 32) { forget(); }

  __device__ void forget() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      maximum_[half] = -INFINITY;
      total_[half] = 0;
#pragma unroll
      for (int d = 0; d < kHeadDim / 8; ++d) sums_[d][2 * half] = sums_[d][2 * half + 1] = 0;
    }
  }

  // Of the rows that this lane has results of.
  __device__ static int row_of(int lane, int half) {
    return lane / 4 + 8 * half;
  }

  // position_of(row): what a row sees up to.
  template <class PositionOf>
  __device__ void set_positions(const PositionOf& position_of) {
#pragma unroll
    for (int half = 0; half < 2; ++half) position_[half] = position_of(row_of(lane_, half));
    lowest_ = position_of(0);
    highest_ = position_of(15);
  }

  // row: where the row lane % 16 begins, 16-bit elements of T.
  __device__ void load_q(const T* row) {
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) load_matrices(q_[i], row + lane_ / 16 * 8 + 16 * i);
  }

  template <class Tile>
  __device__ void score(const Tile& k, int first_key, Scores& scores) const {
    const int key = first_key + lane_ / 16 * 8 + lane_ % 8;
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32_t keys[4];
        load_matrices(keys, k.address(key + n * 16, i * 16 + lane_ / 8 % 2 * 8));
        multiply_add<T>(scores[2 * n], q_[i], keys[0], keys[1]);
        multiply_add<T>(scores[2 * n + 1], q_[i], keys[2], keys[3]);
      }
    }
  }

  // scale: of the keys from the warp's first one on.
  __device__ void scale_columns(const float* scale, Scores& scores) const {
    const float* column = scale + lane_ % 4 * 2;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] *= column[8 * n + i % 2];
    }
  }

  // Scores become weights relative to the largest score so far; the sums so far follow. first_key:
  // position of the warp's first one.
  __device__ void soften(const ScoreRules& rules, int32_t first_key, Scores& scores) {
    if (rules.soft_cap > 0) cap(rules.soft_cap, scores);
    mask(rules.window, first_key, scores);
#pragma unroll
    for (int half = 0; half < 2; ++half) soften_half(rules.scale, half, scores);
  }

  template <class Tile>
  __device__ void add_values(const Tile& v, int first_key, const Scores& weights) {
    const int key = first_key + lane_ % 16;
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      const float(&low)[4] = weights[2 * n];
      const float(&high)[4] = weights[2 * n + 1];
      const uint32_t packed[4] = {pack_pair<T>(low[0], low[1]), pack_pair<T>(low[2], low[3]),
                                  pack_pair<T>(high[0], high[1]), pack_pair<T>(high[2], high[3])};
#pragma unroll
      for (int d = 0; d < kHeadDim / 16; ++d) {
        uint32_t values[4];
        load_matrices_transposed(values, v.address(key + n * 16, d * 16 + lane_ / 16 * 8));
        multiply_add<T>(sums_[2 * d], packed, values[0], values[1]);
        multiply_add<T>(sums_[2 * d + 1], packed, values[2], values[3]);
      }
    }
  }

  // To be called before results are taken: the lanes of a row have each a part of its total.
  __device__ void add_totals() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      total_[half] += __shfl_xor_sync(~0u, total_[half], 1);
      total_[half] += __shfl_xor_sync(~0u, total_[half], 2);
    }
  }

  __device__ float maximum(int half) const {
    return maximum_[half];
  }

  __device__ float total(int half) const {
    return total_[half];
  }

  // body(column, sums of that and the next one) for all that this lane has of a row.
  template <class Body>
  __device__ void for_each_pair(int half, const Body& body) const {
#pragma unroll
    for (int d = 0; d < kHeadDim / 8; ++d)
      body(8 * d + lane_ % 4 * 2, float2{sums_[d][2 * half], sums_[d][2 * half + 1]});
  }

 private:
  __device__ static void cap(float soft_cap, Scores& scores) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] = soft_cap * tanhf(scores[n][i] / soft_cap);
    }
  }

  __device__ void mask(int32_t window, int32_t first_key, Scores& scores) const {
    const bool sees_all = first_key + kKeys <= lowest_ + 1;
    if (sees_all && (window == 0 || first_key > highest_ - window)) return;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t key = first_key + 8 * n + lane_ % 4 * 2 + i % 2;
        const int32_t position = position_[i / 2];
        if (key > position || (window > 0 && key <= position - window)) scores[n][i] = -INFINITY;
      }
    }
  }

  __device__ void soften_half(float scale, int half, Scores& scores) {
    float largest = maximum_[half];
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
      largest = fmaxf(largest, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    const float base = largest == -INFINITY ? 0.0f : largest * scale;
    const float fade = exp2f(maximum_[half] * scale - base);
    maximum_[half] = largest;
    total_[half] *= fade;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        scores[n][i] = exp2f(scores[n][i] * scale - base);
        total_[half] += scores[n][i];
      }
    }
#pragma unroll
    for (int d = 0; d < kHeadDim / 8; ++d) {
      sums_[d][2 * half] *= fade;
      sums_[d][2 * half + 1] *= fade;
    }
  }

  int lane_;
  int32_t position_[2];
  int32_t lowest_;
  int32_t highest_;
  uint32_t q_[kHeadDim / 16][4];
  float sums_[kHeadDim / 8][4];
  float maximum_[2];
  float total_[2];
};

}  // namespace droidspeak::cuda
