// The input of the kernel of strip_product.h on its way into shared memory, where it becomes
// integers. Of a block of 32 columns whose largest number is at least 2^e and less than 2^(e + 1),
// every number is rounded to a multiple of 2^(e - 13), which is exact for bf16 numbers of at least
// 2^(e - 6). The multiple, less than 2^14, is 256 times a first digit and a second one, both int8.
//
// A block of a row takes the 64 bytes that it took as bf16: [digit][t] eight bytes, of columns
// 4 t, 16 + 4 t, 4 t + 1, 16 + 4 t + 1 and of those two further on, as LaneChunk::bytes() has them.
#pragma once

#include "ops/cuda/device_code/async_copy.cuh"
#include "ops/cuda/quantized/strip_task.cuh"

namespace droidspeak::cuda {

// kUnit: as of LaneChunk; the scales make up for it.
template <int kFours, bool kHasMinimum, int kUnit>
class StripInput {
 public:
  using Memory = StripMemory<kFours, kHasMinimum>;
  // Of the rows, one sum for each warp.
  using Squares = float[Memory::kRoomRows][kStripWarps];

  __device__ StripInput(const StripTask& task, const Memory& memory, Squares& squares)
      : task_(task), memory_(memory), squares_(squares) {}

  // What does not depend on the kernel before.
  __device__ void start() const {
    constexpr int kFloats = 4;  // in one copy
    if (task_.norm_weight == nullptr) return;
    for (int i = thread() * kFloats; i < task_.columns; i += kStripThreads * kFloats)
      copy_async(memory_.norm + i, task_.norm_weight + i, true);
    commit_copies();
  }

  // The columns from step `first` on; the whole block has them afterwards and had no more use for
  // those before.
  __device__ void read(int first) const {
    __syncthreads();
    for (int row = 0; row < task_.rows; ++row) copy_row(row, first * kStepColumns);
    wait_copies<0>();
    if (task_.norm_weight != nullptr) {
      for (int row = 0; row < task_.rows; ++row) {
        const float sum = warp_sum(squares_of(row));
        if (thread() % 32 == 0) squares_[row][thread() / 32] = sum;
      }
      __syncthreads();
      for (int row = 0; row < task_.rows; ++row) norm_row(row);
    }
    for (int row = 0; row < task_.rows; ++row) make_digits(row);
    __syncthreads();
  }

 private:
  static constexpr int kVector = 8;      // bf16 in one access
  static constexpr int kDigitBits = 13;  // of a number's multiple, below its highest

  __device__ static int thread() { return static_cast<int>(threadIdx.x); }

  __device__ __nv_bfloat16* row_of(int row) const { return memory_.in + row * task_.in_pitch(); }

  // Zeros behind the last column.
  __device__ void copy_row(int row, int begin) const {
    const int64_t in_row = task_.in_rows == nullptr ? row : task_.in_rows[row];
    const __nv_bfloat16* from = task_.in + in_row * task_.in_stride + begin;
    __nv_bfloat16* to = row_of(row);
    for (int i = thread() * kVector; i < task_.phase_columns(); i += kStripThreads * kVector) {
      const bool is_there = begin + i < task_.columns;
      copy_async(to + i, is_there ? from + i : task_.in, is_there);
    }
    commit_copies();
  }

  // Of what this thread has copied.
  __device__ float squares_of(int row) const {
    const __nv_bfloat16* values = row_of(row);
    float sum = 0;
    for (int i = thread() * kVector; i < task_.columns; i += kStripThreads * kVector) {
      const auto pack = load_pack<kVector>(values + i);
#pragma unroll
      for (int e = 0; e < kVector; ++e) sum += to_float(pack.values[e]) * to_float(pack.values[e]);
    }
    return sum;
  }

  // Every thread norms what it has copied.
  __device__ void norm_row(int row) const {
    float sum = 0;
    for (int warp = 0; warp < kStripWarps; ++warp) sum += squares_[row][warp];
    const float mean = sum / static_cast<float>(task_.columns);
    const float factor = 1.0f / sqrtf(mean + task_.norm_epsilon);
    __nv_bfloat16* values = row_of(row);
    for (int i = thread() * kVector; i < task_.columns; i += kStripThreads * kVector) {
      const auto weight = load_pack<kVector>(memory_.norm + i);
      auto pack = load_pack<kVector>(values + i);
#pragma unroll
      for (int e = 0; e < kVector; ++e)
        pack.values[e] =
            from_float<__nv_bfloat16>(to_float(pack.values[e]) * factor * weight.values[e]);
      store_pack<kVector>(values + i, pack);
      if (blockIdx.x == 0) store_pack<kVector>(task_.normed + row * task_.normed_stride + i, pack);
    }
  }

  // Four lanes have a block; every thread takes what it has copied.
  __device__ void make_digits(int row) const {
    for (int i = thread() * kVector; i < task_.phase_columns(); i += kStripThreads * kVector) {
      __nv_bfloat16* block = row_of(row) + i / 32 * 32;
      const auto pack = load_pack<kVector>(block + i % 32);
      int most = 0;  // as bits, of which those of NaN are the largest
#pragma unroll
      for (int e = 0; e < kVector; ++e)
        most = max(most, __float_as_int(fabsf(to_float(pack.values[e]))));
      const int exponent = exponent_of(max_of_four(most));
      const float factor = power_of_two(kDigitBits - exponent);
      int values[kVector];
#pragma unroll
      for (int e = 0; e < kVector; ++e)
        values[e] = __float2int_rn(to_float(pack.values[e]) * factor);
      __syncwarp();
      store_digits(values, i / kVector % 4, reinterpret_cast<uint4*>(block));
      store_scale(values, row * task_.scale_pitch() + i / 32, exponent);
    }
  }

  // None so small that its power of two has no inverse. 128: not finite.
  __device__ static int exponent_of(int bits) {
    constexpr int kLeast = -100;
    return max((bits >> 23) - 127, kLeast);
  }

  __device__ static float power_of_two(int exponent) {
    return __int_as_float((127 + exponent) << 23);
  }

  __device__ static int max_of_four(int value) {
    value = max(value, __shfl_xor_sync(~0u, value, 1));
    return max(value, __shfl_xor_sync(~0u, value, 2));
  }

  // Of the block's vectors the first two lanes store the first digits, the others the second ones:
  // each lane 16 bytes, for which it needs half of what the lane two further on or back has.
  __device__ static void store_digits(const int (&values)[kVector], int vector, uint4* block) {
    uint32_t first[2];
    uint32_t second[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int* four = values + 4 * half;
      first[half] = bytes_of(four[0] + 128, four[1] + 128, four[2] + 128, four[3] + 128, 0x0051);
      second[half] = bytes_of(four[0], four[1], four[2], four[3], 0x0040);
    }
    const bool is_first = vector < 2;
    uint32_t lower[2];  // columns below 16
    uint32_t upper[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t other = __shfl_xor_sync(~0u, is_first ? second[half] : first[half], 2);
      lower[half] = is_first ? first[half] : other;
      upper[half] = is_first ? other : second[half];
    }
    block[vector] = {
        __byte_perm(lower[0], upper[0], 0x5140), __byte_perm(lower[0], upper[0], 0x7362),
        __byte_perm(lower[1], upper[1], 0x5140), __byte_perm(lower[1], upper[1], 0x7362)};
  }

  // One byte of each number, the lowest (selector 0x40) or the second (0x51).
  __device__ static uint32_t bytes_of(int a, int b, int c, int d, uint32_t selector) {
    const auto pair = [&](int x, int y) {
      return __byte_perm(static_cast<uint32_t>(x), static_cast<uint32_t>(y), selector);
    };
    return __byte_perm(pair(a, b), pair(c, d), 0x5410);
  }

  // All four lanes call it, one stores.
  __device__ void store_scale(const int (&values)[kVector], int at, int exponent) const {
    const bool is_finite = exponent < 128;
    const float scale =
        is_finite ? power_of_two(exponent - kDigitBits) : __int_as_float(0x7fffffff);
    int sum = 0;
    if constexpr (kHasMinimum) {
#pragma unroll
      for (int e = 0; e < kVector; ++e) sum += values[e];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
    }
    if (thread() % 4 != 0) return;
    memory_.scales[at] = scale / kUnit;
    if constexpr (kHasMinimum) memory_.block_sums[at] = scale * static_cast<float>(sum);
  }

  const StripTask& task_;
  const Memory& memory_;
  Squares& squares_;
};

}  // namespace droidspeak::cuda
