// The input of the kernel of strip_product.h on its way into shared memory.
#pragma once

#include "ops/cuda/device_code/async_copy.cuh"
#include "ops/cuda/quantized/strip_task.cuh"

namespace droidspeak::cuda {

template <int kTiles, bool kHasMinimum>
class StripInput {
 public:
  using Memory = StripMemory<kTiles, kHasMinimum>;
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
    __syncthreads();
    if constexpr (kHasMinimum) {
      sum_blocks();
      __syncthreads();
    }
  }

 private:
  static constexpr int kVector = 8;  // bf16 in one access

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

  __device__ void sum_blocks() const {
    const int count = task_.phase_columns() / 32 * Memory::kRoomRows;
    for (int i = thread(); i < count; i += kStripThreads) {
      const int row = i % Memory::kRoomRows;
      float sum = 0;
      if (row < task_.rows) {
        const __nv_bfloat16* values = row_of(row) + i / Memory::kRoomRows * 32;
#pragma unroll
        for (int first = 0; first < 32; first += kVector) {
          const auto pack = load_pack<kVector>(values + first);
#pragma unroll
          for (int e = 0; e < kVector; ++e) sum += to_float(pack.values[e]);
        }
      }
      memory_.block_sums[i] = sum;
    }
  }

  const StripTask& task_;
  const Memory& memory_;
  Squares& squares_;
};

}  // namespace droidspeak::cuda
