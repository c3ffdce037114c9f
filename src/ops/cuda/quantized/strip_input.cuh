// The input of the kernel of strip_kernel.cuh on its way into shared memory.
#pragma once

#include "ops/cuda/device_code/async_copy.cuh"
#include "ops/cuda/quantized/strip_task.cuh"

namespace droidspeak::cuda {

template <int kTiles, bool kHasMinimum>
class StripInput {
 public:
  using Memory = StripMemory<kTiles, kHasMinimum>;

  __device__ StripInput(const StripTask& task, const Memory& memory)
      : task_(task), memory_(memory) {}

  // The columns from step `first` on; the whole block has them afterwards and had no more use for
  // those before.
  __device__ void read(int first) const {
    __syncthreads();
    for (int row = 0; row < task_.rows; ++row) copy_row(row, first * kStepColumns);
    wait_copies<0>();
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
};

}  // namespace droidspeak::cuda
