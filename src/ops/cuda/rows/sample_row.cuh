// What the steps of sampling share: one block over one row of logits, sums that come out the same
// in any order.
#pragma once

#include <cstdint>

#include "ops/cuda/rows/best.cuh"

namespace droidspeak::cuda {

inline constexpr int kSampleThreads = 1024;
inline constexpr int kSampleWarps = kSampleThreads / 32;
static_assert(kSampleWarps == 32, "one warp reduces what all of them have");

inline constexpr int kBins = 2048;          // of a histogram
inline constexpr int kMostGathered = 2048;  // tokens that are sorted at once
inline constexpr int kPowers = 64;
inline constexpr int kWeightBits = 44;  // weights are multiples of 2^-44

struct SampleShared {
  double powers[kPowers];  // 2^(i / kPowers)
  uint64_t sums[kSampleWarps];
  Best bests[kSampleWarps];
  uint32_t counts[kBins];  // a histogram: how many tokens, and the halves of their weights
  uint32_t low[kBins];
  uint32_t high[kBins];
  uint64_t gathered[kMostGathered];
  uint32_t num_gathered;
  uint32_t far_count;  // of the last bin
  uint64_t found;      // what one thread tells the others
  uint64_t found_before;
};

struct LogitRow {
  float* logits;
  int columns;
  bool is_aligned;  // to four of them
};

// The numbers of a row are dealt out in fours: thread t has fours t, t + kSampleThreads, ...
__device__ inline float4 load_four(const LogitRow& row, int four) {
  if (row.is_aligned && 4 * four + 3 < row.columns)
    return *reinterpret_cast<const float4*>(row.logits + 4 * four);
  const float* from = row.logits + 4 * four;
  const int there = row.columns - 4 * four;
  return {from[0], there > 1 ? from[1] : 0, there > 2 ? from[2] : 0, there > 3 ? from[3] : 0};
}

// body(token, logit), in every thread for its own tokens in ascending order.
template <class Body>
__device__ void for_each_token(const LogitRow& row, const Body& body) {
  constexpr int kAhead = 4;
  const int fours = (row.columns + 3) / 4;
  for (int first = static_cast<int>(threadIdx.x); first < fours; first += kAhead * kSampleThreads) {
    float4 values[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int four = first + i * kSampleThreads;
      if (four < fours) values[i] = load_four(row, four);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int token = 4 * (first + i * kSampleThreads);
      if (token < row.columns) body(token, values[i].x);
      if (token + 1 < row.columns) body(token + 1, values[i].y);
      if (token + 2 < row.columns) body(token + 2, values[i].z);
      if (token + 3 < row.columns) body(token + 3, values[i].w);
    }
  }
}

// Number n of thread's tokens, in the order of for_each_token().
__device__ inline int token_of(int thread, int n) {
  return 4 * (thread + n / 4 * kSampleThreads) + n % 4;
}

// The best of all threads' ones, to every thread.
__device__ inline Best block_best(Best best, SampleShared& shared) {
  best = warp_best(best);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared.bests[threadIdx.x / 32] = best;
  __syncthreads();
  return warp_best(shared.bests[threadIdx.x % 32]);
}

__device__ inline uint64_t warp_scan(uint64_t value) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int step = 1; step < 32; step *= 2) {
    const uint64_t other = __shfl_up_sync(~0u, value, static_cast<unsigned>(step));
    if (lane >= step) value += other;
  }
  return value;
}

struct Scanned {
  uint64_t before;  // sum of the values of all threads before this one
  uint64_t total;
};

__device__ inline Scanned block_scan(uint64_t value, SampleShared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const uint64_t sum = warp_scan(value);
  __syncthreads();
  if (lane == 31) shared.sums[warp] = sum;
  __syncthreads();
  const uint64_t warps = warp_scan(shared.sums[lane]);
  const uint64_t earlier = __shfl_sync(~0u, warps, (warp + 31) % 32);
  return {.before = (warp == 0 ? 0 : earlier) + sum - value, .total = __shfl_sync(~0u, warps, 31)};
}

__device__ inline void fill_powers(SampleShared& shared) {
  if (threadIdx.x < kPowers)
    shared.powers[threadIdx.x] = exp2(static_cast<double>(threadIdx.x) / kPowers);
  __syncthreads();
}

// exp(x) for x <= 0 in units of 2^-kWeightBits, off by less than two of them: whole numbers, whose
// sums do not depend on the order.
__device__ inline uint64_t weight_of(float x, const double* powers) {
  if (!(x > -31)) return 0;
  constexpr double kRounder = 6755399441055744.0;  // 1.5 * 2^52: leaves whole numbers
  constexpr double kPerUnit = kPowers * 1.4426950408889634;
  constexpr double kUnit = 0.6931471805599453 / kPowers;
  const double rounded = fma(static_cast<double>(x), kPerUnit, kRounder);
  const int steps = __double2loint(rounded);  // exp(x) = 2^(steps / kPowers) * exp(rest)
  const double rest = fma(-(rounded - kRounder), kUnit, static_cast<double>(x));
  double factor = fma(rest, 1.0 / 24, 1.0 / 6);
  factor = fma(rest, factor, 0.5);
  factor = fma(rest, factor, 1.0);
  factor = fma(rest, factor, 1.0);
  const double value = powers[steps & (kPowers - 1)] * factor;
  // Times 2^(steps / kPowers rounded down) by the exponent; then the last bit is worth 2^-44.
  const double scaled =
      __hiloint2double(__double2hiint(value) + (steps >> 6) * (1 << 20), __double2loint(value));
  constexpr double kAnchor = 256;  // 2^(52 - kWeightBits)
  static_assert(kWeightBits == 44 && kPowers == 64);
  return static_cast<uint64_t>(__double_as_longlong(scaled + kAnchor) -
                               __double_as_longlong(kAnchor));
}

// Whole numbers in the order of the floats; both zeros are the same.
__device__ inline uint32_t key_of(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

__device__ inline float value_of(uint32_t key) {
  return __uint_as_float((key >> 31) != 0 ? key & 0x7fffffffu : ~key);
}

}  // namespace droidspeak::cuda
