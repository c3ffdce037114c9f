// The input of the kernel of few_rows.h on its way into shared memory.
#pragma once

#include "ops/cuda/device_code/async_copy.cuh"
#include "ops/cuda/device_code/fp8.cuh"
#include "ops/cuda/products/few_rows_task.cuh"

namespace droidspeak::cuda {

// Brings the rows of the input into shared memory, normed and rounded to 8-bit floats if that is
// asked for.
class InputReader {
 public:
  struct Sums {
    float squares[kMostFewRows][kWarps];  // of the rows, one for each warp
    float largest[kMostFewRows][kWarps];
    float scales[kMostFewRows];  // of rounded rows
  };

  // room_rows: what the kernel is made for, at least the rows that there are.
  __host__ static size_t bytes(const ProductTask& task, int room_rows) {
    const size_t norm = task.norm_weight == nullptr ? 0 : bytes_of(DType::kF32, task.columns);
    return norm + bytes_of(DType::kBF16, int64_t{room_rows} * task.in_pitch());
  }

  __device__ InputReader(const ProductTask& task, unsigned char* memory, Sums& sums)
      : task_(task), norm_(reinterpret_cast<float*>(memory)), sums_(sums) {
    const int floats = task.norm_weight == nullptr ? 0 : task.columns;
    to_ = reinterpret_cast<__nv_bfloat16*>(norm_ + floats);
  }

  const __device__ __nv_bfloat16* rows() const { return to_; }

  const __device__ float* scales() const { return sums_.scales; }

  // What does not depend on the kernel before.
  __device__ void start() const {
    constexpr int kFloats = 4;  // in one copy
    if (task_.norm_weight == nullptr) return;
    for (int i = static_cast<int>(threadIdx.x) * kFloats; i < task_.columns;
         i += kThreads * kFloats)
      copy_async(norm_ + i, task_.norm_weight + i, true);
    commit_copies();
  }

  // The whole block has the rows afterwards.
  __device__ void read() const {
    for (int row = 0; row < task_.rows; ++row) copy_row(row);
    wait_copies<0>();
    if (task_.norm_weight != nullptr) {
      for (int row = 0; row < task_.rows; ++row) {
        const float sum = warp_sum(squares_of(row));
        if (threadIdx.x % 32 == 0) sums_.squares[row][threadIdx.x / 32] = sum;
      }
      __syncthreads();
      for (int row = 0; row < task_.rows; ++row) norm_row(row);
    }
    if (task_.scales != nullptr) round_rows();
    __syncthreads();
  }

 private:
  // Zeros behind the last column.
  __device__ void copy_row(int row) const {
    const int64_t in_row = task_.in_rows == nullptr ? row : task_.in_rows[row];
    const __nv_bfloat16* from = task_.in + in_row * task_.in_stride;
    __nv_bfloat16* to = to_ + row * task_.in_pitch();
    for (int i = static_cast<int>(threadIdx.x) * kVector; i < task_.in_pitch();
         i += kThreads * kVector)
      copy_async(to + i, from + i, i < task_.columns);
    commit_copies();
  }

  // Of what this thread has copied.
  __device__ float squares_of(int row) const {
    const __nv_bfloat16* values = to_ + row * task_.in_pitch();
    float sum = 0;
    for (int i = static_cast<int>(threadIdx.x) * kVector; i < task_.columns;
         i += kThreads * kVector) {
      const auto pack = load_pack<kVector>(values + i);
      for (int e = 0; e < kVector; ++e) sum += to_float(pack.values[e]) * to_float(pack.values[e]);
    }
    return sum;
  }

  // Every thread norms what it has copied.
  __device__ void norm_row(int row) const {
    float sum = 0;
    for (int warp = 0; warp < kWarps; ++warp) sum += sums_.squares[row][warp];
    const float mean = sum / static_cast<float>(task_.columns);
    const float factor = 1.0f / sqrtf(mean + task_.norm_epsilon);
    __nv_bfloat16* values = to_ + row * task_.in_pitch();
    for (int i = static_cast<int>(threadIdx.x) * kVector; i < task_.columns;
         i += kThreads * kVector) {
      const auto weight = load_pack<kVector>(norm_ + i);
      auto pack = load_pack<kVector>(values + i);
      for (int e = 0; e < kVector; ++e)
        pack.values[e] =
            from_float<__nv_bfloat16>(to_float(pack.values[e]) * factor * weight.values[e]);
      store_pack<kVector>(values + i, pack);
      if (blockIdx.x == 0) store_pack<kVector>(task_.normed + row * task_.normed_stride + i, pack);
    }
  }

  __device__ void round_rows() const {
    for (int row = 0; row < task_.rows; ++row) {
      const float largest = largest_of_warp(largest_of(row));
      if (threadIdx.x % 32 == 0) sums_.largest[row][threadIdx.x / 32] = largest;
    }
    __syncthreads();
    for (int row = 0; row < task_.rows; ++row) round_row(row);
  }

  // Of what this thread has copied.
  __device__ float largest_of(int row) const {
    const __nv_bfloat16* values = to_ + row * task_.in_pitch();
    float largest = 0;
    for (int i = static_cast<int>(threadIdx.x) * kVector; i < task_.columns;
         i += kThreads * kVector) {
      const auto pack = load_pack<kVector>(values + i);
      for (int e = 0; e < kVector; ++e) largest = larger(largest, to_float(pack.values[e]));
    }
    return largest;
  }

  // To what codes stand for, which bf16 holds exactly.
  __device__ void round_row(int row) const {
    float largest = 0;
    for (int warp = 0; warp < kWarps; ++warp) largest = larger(largest, sums_.largest[row][warp]);
    const Fp8Scale scale(largest);
    if (threadIdx.x == 0) sums_.scales[row] = scale.factor;
    __nv_bfloat16* values = to_ + row * task_.in_pitch();
    for (int i = static_cast<int>(threadIdx.x) * kVector; i < task_.columns;
         i += kThreads * kVector) {
      auto pack = load_pack<kVector>(values + i);
      for (int e = 0; e < kVector; ++e)
        pack.values[e] =
            from_float<__nv_bfloat16>(float_from_code(scale.code_of(to_float(pack.values[e]))));
      store_pack<kVector>(values + i, pack);
    }
  }

  const ProductTask& task_;
  float* norm_;  // [columns], when rows are normed
  __nv_bfloat16* to_;
  Sums& sums_;
};

}  // namespace droidspeak::cuda
