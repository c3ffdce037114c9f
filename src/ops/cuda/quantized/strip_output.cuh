// What products of strip_product.h begin with and where they go.
#pragma once

#include "ops/cuda/quantized/strip_task.cuh"
#include "ops/cuda/rows/activation.cuh"

namespace droidspeak::cuda {

class StripOutput {
 public:
  __device__ explicit StripOutput(const StripTask& task) : task_(task) {}

  // What a sum starts with.
  __device__ float before(int row, int output) const {
    float value = task_.bias != nullptr ? task_.bias[output] : 0.0f;
    if (task_.accumulate == Accumulate::kAdd)
      value += is_f32() ? *f32(row, output) : to_float(*bf16(row, output));
    return value;
  }

  __device__ void store_sum(int row, int output, float sum) const {
    if (is_f32()) {
      *f32(row, output) = sum;
    } else {
      *bf16(row, output) = __float2bfloat16_rn(sum);
    }
  }

  // Of both halves' values as they are stored.
  __device__ void store_gated(int row, int unit, float gate, float up) const {
    const float value = to_float(__float2bfloat16_rn(gate));
    const float other = to_float(__float2bfloat16_rn(up));
    const float active =
        task_.activation == Activation::kSilu ? silu<__nv_bfloat16>(value) : gelu(value);
    task_.gated[row * task_.gated_stride + unit] = __float2bfloat16_rn(active * other);
  }

 private:
  __device__ bool is_f32() const { return task_.out_dtype == DType::kF32; }

  __device__ float* f32(int row, int output) const {
    return static_cast<float*>(task_.out) + row * task_.out_stride + output;
  }

  __device__ __nv_bfloat16* bf16(int row, int output) const {
    return static_cast<__nv_bfloat16*>(task_.out) + row * task_.out_stride + output;
  }

  const StripTask& task_;
};

template <int kTiles>
using TileSums = float[kTiles][4];  // strip 0: rows 2 t, 2 t + 1; strip 1

// Results of a tile of the kernel of strip_kernel.cuh, as the tensor cores leave them: lane 4 g + t
// has row g of both strips, for input rows 2 t and 2 t + 1 of every eight.
template <int kTiles>
class StripTileOutput {
 public:
  __device__ StripTileOutput(const StripTask& task, int tile)
      : out_(task), task_(task), tile_(tile), is_there_(tile < task.num_tiles) {}

  // What the sums start with, to be read ahead; zeros where nothing is stored.
  __device__ void read_before(TileSums<kTiles>& before) const {
    for_each([&](int row, int output, int eight, int place) {
      before[eight][place] = out_.before(row, output);
    });
  }

  __device__ void store(const TileSums<kTiles>& sums) const {
    for_each([&](int row, int output, int eight, int place) {
      if (task_.out != nullptr) out_.store_sum(row, output, sums[eight][place]);
      if (task_.gated != nullptr && place < 2)
        out_.store_gated(row, output, sums[eight][place], sums[eight][place + 2]);
    });
  }

 private:
  // Calls body(input row, matrix row, eight of rows, place in the sums) for what there is.
  template <class Body>
  __device__ __forceinline__ void for_each(const Body& body) const {
    if (!is_there_) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int eight = 0; eight < kTiles; ++eight) {
#pragma unroll
      for (int place = 0; place < 4; ++place) {
        const int output = task_.strip_of(tile_, place / 2) * kStripRows + lane / 4;
        const int row = 8 * eight + 2 * (lane % 4) + place % 2;
        if (row < task_.rows && output < task_.outputs) body(row, output, eight, place);
      }
    }
  }

  StripOutput out_;
  const StripTask& task_;
  int tile_;
  bool is_there_;
};

}  // namespace droidspeak::cuda
