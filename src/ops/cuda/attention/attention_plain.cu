#include <cmath>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "base/check.h"
#include "device/cuda/cuda_check.h"
#include "ops/cuda/attention/attention_plain.h"
#include "ops/cuda/device_code/vector.cuh"

namespace droidspeak::cuda {
namespace {

constexpr int kPlainThreads = 128;
constexpr int kLanes = 4;  // threads of one row; each owns every fourth element of the head
constexpr int kPlainRows = kPlainThreads / kLanes;

// Keys in shared memory at a time.
template <int kPadded>
constexpr int kPlainKeys = kPadded > 128 ? 16 : 32;

struct PlainArguments {
  const void* q;
  void* out;
  int64_t q_stride;
  int64_t out_stride;
  KvLayerView kv;
  const int32_t* blocks;
  const int32_t* slice_row;
  const int32_t* slice_rows;
  const int32_t* row_position;
  int32_t max_blocks;
  int32_t group;
  int32_t window;
  float scale;
  float soft_cap;      // 0: none
  const float* sinks;  // null: none
};

__device__ void put(float* target, float value) {
  *target = value;
}

__device__ void put(__nv_bfloat16* target, float value) {
  *target = __float2bfloat16(value);
}

// Keys [first, first + kPlainKeys<kPadded>) of one head into shared memory; zeros from `end` on and
// beyond the head.
template <class Element, int kPadded>
__device__ void load_rows(const PlainArguments& a,
                          const void* cache,
                          const float* scales,
                          int32_t first,
                          int32_t end,
                          float (&rows)[kPlainKeys<kPadded>][kPadded]) {
  const auto slice = static_cast<int64_t>(blockIdx.z);
  const auto head = static_cast<int32_t>(blockIdx.y) / a.group;
  for (int i = static_cast<int>(threadIdx.x); i < kPlainKeys<kPadded> * kPadded;
       i += kPlainThreads) {
    const int32_t key = first + i / kPadded;
    const int element = i % kPadded;
    float value = 0;
    if (key < end && element < a.kv.head_dim) {
      const int32_t block = a.blocks[slice * a.max_blocks + key / kBlockTokens];
      const int64_t row = (static_cast<int64_t>(block) * a.kv.num_kv_heads + head) * kBlockTokens +
                          key % kBlockTokens;
      value = to_float(static_cast<const Element*>(cache)[row * a.kv.head_dim + element]);
      if (scales != nullptr) value *= scales[row];
    }
    rows[i / kPadded][element] = value;
  }
}

// Block [row tile, head, slice]; kLanes neighbouring threads share a row.
template <class Activation, class Element, int kPadded>
__global__ void __launch_bounds__(kPlainThreads)
    attend_rows(const __grid_constant__ PlainArguments a) {
  constexpr int kKeys = kPlainKeys<kPadded>;
  __shared__ float k[kKeys][kPadded];
  __shared__ float v[kKeys][kPadded];
  constexpr int kOwn = kPadded / kLanes;
  const int32_t rows = a.slice_rows[blockIdx.z];
  const int32_t first_row = static_cast<int32_t>(blockIdx.x) * kPlainRows;
  if (first_row >= rows) return;
  const int32_t row = first_row + static_cast<int32_t>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int32_t* positions = a.row_position + a.slice_row[blockIdx.z];
  const int32_t position = positions[min(row, rows - 1)];
  const int64_t global_row = a.slice_row[blockIdx.z] + min(row, rows - 1);
  const int64_t column = static_cast<int64_t>(blockIdx.y) * a.kv.head_dim;

  float q[kOwn];
  float sums[kOwn] = {};
  const auto* source = static_cast<const Activation*>(a.q) + global_row * a.q_stride + column;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int element = kLanes * i + lane;
    q[i] = element < a.kv.head_dim ? to_float(source[element]) * a.scale : 0.0f;
  }
  float largest = a.sinks == nullptr ? -INFINITY : a.sinks[blockIdx.y];
  float total = a.sinks == nullptr ? 0.0f : 1.0f;
  const int32_t end = positions[min(first_row + kPlainRows, rows) - 1] + 1;
  const int32_t seen = a.window > 0 ? max(0, positions[first_row] + 1 - a.window) : 0;
  for (int32_t first = seen / kKeys * kKeys; first < end; first += kKeys) {
    __syncthreads();
    load_rows<Element>(a, a.kv.k, a.kv.k_scale, first, end, k);
    load_rows<Element>(a, a.kv.v, a.kv.v_scale, first, end, v);
    __syncthreads();
    for (int key = 0; key < kKeys; ++key) {
      float score = 0;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) score += q[i] * k[key][kLanes * i + lane];
      score += __shfl_xor_sync(~0u, score, 1);
      score += __shfl_xor_sync(~0u, score, 2);
      if (a.soft_cap > 0) score = a.soft_cap * tanhf(score / a.soft_cap);
      const int32_t at = first + key;
      if (at > position || (a.window > 0 && at <= position - a.window)) continue;
      const float next = fmaxf(largest, score);
      const float fade = expf(largest - next);
      const float weight = expf(score - next);
      largest = next;
      total = total * fade + weight;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) sums[i] = sums[i] * fade + weight * v[key][kLanes * i + lane];
    }
  }
  if (row >= rows) return;
  auto* target = static_cast<Activation*>(a.out) + global_row * a.out_stride + column;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int element = kLanes * i + lane;
    if (element < a.kv.head_dim) put(target + element, sums[i] / total);
  }
}

struct Launch {
  PlainArguments arguments;
  dim3 grid;
  cudaStream_t stream;
};

template <class Activation, class Element>
void launch_element(const Launch& launch) {
  const int32_t head_dim = launch.arguments.kv.head_dim;
  if (head_dim <= 32) {
    attend_rows<Activation, Element, 32>
        <<<launch.grid, kPlainThreads, 0, launch.stream>>>(launch.arguments);
  } else if (head_dim <= 64) {
    attend_rows<Activation, Element, 64>
        <<<launch.grid, kPlainThreads, 0, launch.stream>>>(launch.arguments);
  } else if (head_dim <= 128) {
    attend_rows<Activation, Element, 128>
        <<<launch.grid, kPlainThreads, 0, launch.stream>>>(launch.arguments);
  } else {
    attend_rows<Activation, Element, kLargestHeadDim>
        <<<launch.grid, kPlainThreads, 0, launch.stream>>>(launch.arguments);
  }
}

template <class Activation>
void launch_activation(const Launch& launch) {
  switch (launch.arguments.kv.dtype) {
    case DType::kF32:
      return launch_element<Activation, float>(launch);
    case DType::kF16:
      return launch_element<Activation, __half>(launch);
    case DType::kBF16:
      return launch_element<Activation, __nv_bfloat16>(launch);
    case DType::kI8:
      return launch_element<Activation, int8_t>(launch);
    default:
      panic("K/V is f32, f16, bf16 or int8");
  }
}

}  // namespace

void attend_plainly(TensorView qkv,
                    const AttentionOptions& options,
                    const BatchLayout& layout,
                    const KvLayerView& kv,
                    TensorView out,
                    cudaStream_t stream) {
  check(kv.head_dim <= kLargestHeadDim, "head size that the kernel was made for");
  check(qkv.dtype == out.dtype, "attention keeps the dtype of the rows");
  const PlainArguments arguments{.q = qkv.data,
                                 .out = out.data,
                                 .q_stride = qkv.row_stride,
                                 .out_stride = out.row_stride,
                                 .kv = kv,
                                 .blocks = layout.blocks,
                                 .slice_row = layout.slice_row,
                                 .slice_rows = layout.slice_rows,
                                 .row_position = layout.row_position,
                                 .max_blocks = layout.max_blocks,
                                 .group = options.num_heads / kv.num_kv_heads,
                                 .window = options.sliding_window,
                                 .scale = options.scale,
                                 .soft_cap = options.soft_cap,
                                 .sinks = options.sinks};
  const dim3 grid(static_cast<unsigned>((layout.max_rows + kPlainRows - 1) / kPlainRows),
                  static_cast<unsigned>(options.num_heads),
                  static_cast<unsigned>(layout.num_slices));
  const Launch launch{arguments, grid, stream};
  if (qkv.dtype == DType::kF32) {
    launch_activation<float>(launch);
  } else {
    check(qkv.dtype == DType::kBF16, "activations are f32 or bf16");
    launch_activation<__nv_bfloat16>(launch);
  }
  check_launch("attention in f32");
}

}  // namespace droidspeak::cuda
