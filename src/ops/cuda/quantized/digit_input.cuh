// The input of the kernel of digit_kernel.cuh on its way into shared memory, where it becomes
// integers. Of a block of 32 columns whose largest number is at least 2^e and less than 2^(e + 1),
// every number is rounded to a multiple of 2^(e - 13), which is exact for bf16 numbers of at least
// 2^(e - 6). The multiple, at most 2^14, is 256 times a first digit and a second one, both int8.
//
// A block of a row takes 64 bytes: [digit][t] eight bytes, of columns 4 t, 16 + 4 t, 4 t + 1,
// 16 + 4 t + 1 and of those two further on, as LaneChunk::bytes() has them. A unit is such a t of a
// block. Threads take units in turn, so four lanes side by side have a block.
#pragma once

#include "ops/cuda/quantized/digit_memory.cuh"

namespace droidspeak::cuda {

// kUnit: as of LaneChunk; the scales make up for it.
template <class Memory, int kUnit>
class DigitInput {
 public:
  __device__ DigitInput(const StripTask& task, const Memory& memory)
      : task_(task), memory_(memory) {}

  // What does not depend on the kernel before.
  __device__ void start() {
    if (task_.norm_weight == nullptr) return;
#pragma unroll
    for (int i = 0; i < kEarly; ++i) {
      const int unit = thread() + i * threads();
      if (unit < task_.columns / kUnitColumns) norm_[i] = norm_of(unit);
    }
  }

  // The columns from step `first` on; the whole block has them afterwards and had no more use for
  // those before.
  __device__ void read(int first) const {
    __syncthreads();
    if (task_.norm_weight != nullptr) {
      for (int row = 0; row < task_.rows; ++row) add_squares(row);
      __syncthreads();
    }
    const int units = task_.phase_columns() / kUnitColumns;
    int row = 0;
    int unit = thread();
    while (row < task_.rows) {
      Values values[kBatch];
      int rows[kBatch];
      int places[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        while (unit >= units && row < task_.rows) {
          unit -= units;
          ++row;
        }
        rows[i] = row;
        places[i] = unit;
        if (row < task_.rows) values[i] = load(row, first * kStepColumns, unit);
        unit += threads();
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (rows[i] >= task_.rows) continue;
        if (task_.norm_weight != nullptr) norm(rows[i], places[i], values[i]);
        store_digits(rows[i], places[i], values[i]);
      }
    }
    __syncthreads();
  }

 private:
  static constexpr int kUnitColumns = 8;
  static constexpr int kBatch = 4;       // units on their way at once
  static constexpr int kEarly = 2;       // units whose norm is read before there is a row
  static constexpr int kDigitBits = 13;  // of a number's multiple, below its highest

  struct Values {  // bf16, of columns 4 t to 4 t + 3 and of those 16 further on
    uint2 lower;
    uint2 upper;
  };

  struct NormWeights {
    float4 lower;
    float4 upper;
  };

  __device__ static int thread() {
    return static_cast<int>(threadIdx.x);
  }

  __device__ static int threads() {
    return static_cast<int>(blockDim.x);
  }

  __device__ static int column_of(int unit) {
    return unit / 4 * 32 + unit % 4 * 4;
  }

  __device__ NormWeights norm_of(int unit) const {
    const float* from = task_.norm_weight + column_of(unit);
    return {*reinterpret_cast<const float4*>(from), *reinterpret_cast<const float4*>(from + 16)};
  }

  // Zeros behind the last column.
  __device__ Values load(int row, int begin, int unit) const {
    const int64_t in_row = task_.in_rows == nullptr ? row : task_.in_rows[row];
    const int column = begin + column_of(unit);
    if (column >= task_.columns) return {};
    const __nv_bfloat16* from = task_.in + in_row * task_.in_stride + column;
    return {*reinterpret_cast<const uint2*>(from), *reinterpret_cast<const uint2*>(from + 16)};
  }

  __device__ static void to_floats(const Values& values, float (&out)[kUnitColumns]) {
    const uint32_t words[] = {values.lower.x, values.lower.y, values.upper.x, values.upper.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = __uint_as_float(words[i] << 16);
      out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }

  // Of a row, one sum for each warp.
  __device__ void add_squares(int row) const {
    float sum = 0;
    for (int unit = thread(); unit < task_.columns / kUnitColumns; unit += threads()) {
      float x[kUnitColumns];
      to_floats(load(row, 0, unit), x);
#pragma unroll
      for (int e = 0; e < kUnitColumns; ++e) sum += x[e] * x[e];
    }
    sum = warp_sum(sum);
    if (thread() % 32 == 0) memory_.squares[row * task_.warps + thread() / 32] = sum;
  }

  __device__ void norm(int row, int unit, Values& values) const {
    if (unit >= task_.columns / kUnitColumns) return;
    float sum = 0;
    for (int warp = 0; warp < task_.warps; ++warp) sum += memory_.squares[row * task_.warps + warp];
    const float mean = sum / static_cast<float>(task_.columns);
    const float factor = 1.0f / sqrtf(mean + task_.norm_epsilon);
    NormWeights weights;
    if (unit == thread()) {
      weights = norm_[0];
    } else if (unit == thread() + threads()) {
      weights = norm_[1];
    } else {
      weights = norm_of(unit);
    }
    float x[kUnitColumns];
    to_floats(values, x);
    auto normed = [&](int at, float first, float second) {
      return pack_pair<__nv_bfloat16>(x[at] * factor * first, x[at + 1] * factor * second);
    };
    values.lower = {normed(0, weights.lower.x, weights.lower.y),
                    normed(2, weights.lower.z, weights.lower.w)};
    values.upper = {normed(4, weights.upper.x, weights.upper.y),
                    normed(6, weights.upper.z, weights.upper.w)};
    if (blockIdx.x != 0) return;
    __nv_bfloat16* to = task_.normed + row * task_.normed_stride + column_of(unit);
    *reinterpret_cast<uint2*>(to) = values.lower;
    *reinterpret_cast<uint2*>(to + 16) = values.upper;
  }

  // None so small that its power of two has no inverse. 128: not finite.
  __device__ static int exponent_of(int bits) {
    constexpr int kLeast = -100;
    return max((bits >> 23) - 127, kLeast);
  }

  __device__ static float power_of_two(int exponent) {
    return __int_as_float((127 + exponent) << 23);
  }

  template <class Join>
  __device__ static int over_block(int value, const Join& join) {
    value = join(value, __shfl_xor_sync(~0u, value, 1));
    return join(value, __shfl_xor_sync(~0u, value, 2));
  }

  __device__ void store_digits(int row, int unit, const Values& values) const {
    // 2^23 and a number in the lower bits of a float, whose two bytes are digits with their highest
    // bit turned over.
    constexpr float kBase = 8388608.0f + 0x8080;
    constexpr uint32_t kTurned = 0x80808080u;
    float x[kUnitColumns];
    to_floats(values, x);
    int most = 0;  // as bits, of which those of NaN are the largest
#pragma unroll
    for (int e = 0; e < kUnitColumns; ++e) most = max(most, __float_as_int(fabsf(x[e])));
    most = over_block(most, [](int a, int b) { return max(a, b); });
    const int exponent = exponent_of(most);
    const float factor = power_of_two(kDigitBits - exponent);
    uint32_t bits[kUnitColumns];
#pragma unroll
    for (int e = 0; e < kUnitColumns; ++e) bits[e] = __float_as_uint(fmaf(x[e], factor, kBase));
    uint32_t pairs[4];  // of a column and the one 16 further on
#pragma unroll
    for (int e = 0; e < 4; ++e) pairs[e] = __byte_perm(bits[e], bits[e + 4], 0x5410);
    auto* block = reinterpret_cast<uint2*>(memory_.digits + row * Memory::pitch(task_) +
                                           unit / 4 * kDigitBlock);
    block[unit % 4] = {__byte_perm(pairs[0], pairs[1], 0x7531) ^ kTurned,
                       __byte_perm(pairs[2], pairs[3], 0x7531) ^ kTurned};
    block[4 + unit % 4] = {__byte_perm(pairs[0], pairs[1], 0x6420) ^ kTurned,
                           __byte_perm(pairs[2], pairs[3], 0x6420) ^ kTurned};
    const float scale =
        exponent < 128 ? power_of_two(exponent - kDigitBits) : __int_as_float(0x7fffffff);
    int sum = 0;
    if constexpr (Memory::kHasSums) {
#pragma unroll
      for (int e = 0; e < kUnitColumns; ++e) sum += static_cast<int>(bits[e] - 0x4b008080u);
      sum = over_block(sum, [](int a, int b) { return a + b; });
    }
    if (unit % 4 != 0) return;
    const int at = row * Memory::scale_pitch(task_) + unit / 4;
    memory_.scales[at] = scale / kUnit;
    if constexpr (Memory::kHasSums) memory_.block_sums[at] = scale * static_cast<float>(sum);
  }

  const StripTask& task_;
  const Memory& memory_;
  NormWeights norm_[kEarly];
};

}  // namespace droidspeak::cuda
