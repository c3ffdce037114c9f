// How much one query row looks at each key: scores of all heads, their maxima and sums, and the
// weights summed over the heads.
#include <algorithm>

#include "device/cuda/cuda_check.h"
#include "ops/cuda/device_code/vector.cuh"
#include "ops/cuda/kernels.h"

namespace droidspeak::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct MassTask {
  const void* q;  // of the row, all heads
  KvLayerView kv;
  const int32_t* blocks;  // of the slice
  int32_t first_key;
  int32_t length;
  int32_t num_heads;
  int32_t group;
  float scale;
  float soft_cap;      // 0: none
  const float* sinks;  // null: none
  float* scores;       // [num_heads, length]
  float2* totals;      // [num_heads] maximum of the scores, sum of their exponentials
  float* sums;
  int32_t num_sums;
};

// grid: (blocks of keys, K/V heads); a warp takes every eighth key of the block, for all query
// heads of the K/V head. Shared: [group, head_dim] queries.
template <class Activation, class Element>
__global__ void __launch_bounds__(kThreads) score_keys(const __grid_constant__ MassTask task) {
  extern __shared__ float queries[];
  const int dim = task.kv.head_dim;
  const auto kv_head = static_cast<int32_t>(blockIdx.y);
  const auto* q = static_cast<const Activation*>(task.q) + kv_head * task.group * dim;
  for (int i = static_cast<int>(threadIdx.x); i < task.group * dim; i += kThreads)
    queries[i] = to_float(q[i]);
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t slot =
      (static_cast<int64_t>(task.blocks[blockIdx.x]) * task.kv.num_kv_heads + kv_head) *
      kBlockTokens;
  for (int key = static_cast<int>(threadIdx.x) / 32; key < kBlockTokens; key += kWarps) {
    const auto position = static_cast<int32_t>(blockIdx.x) * kBlockTokens + key;
    if (position < task.first_key || position >= task.length) continue;
    const auto* row = static_cast<const Element*>(task.kv.k) + (slot + key) * dim;
    const float scale =
        task.scale * (task.kv.k_scale == nullptr ? 1.0f : task.kv.k_scale[slot + key]);
    for (int head = 0; head < task.group; ++head) {
      float score = 0;
      for (int i = lane; i < dim; i += 32) score += queries[head * dim + i] * to_float(row[i]);
      score = warp_sum(score) * scale;
      if (task.soft_cap > 0) score = task.soft_cap * tanhf(score / task.soft_cap);
      if (lane == 0)
        task.scores[static_cast<int64_t>(kv_head * task.group + head) * task.length + position] =
            score;
    }
  }
}

// One block for each head.
__global__ void __launch_bounds__(kThreads) total_scores(const __grid_constant__ MassTask task) {
  __shared__ float maxima[kWarps];
  const auto head = static_cast<int32_t>(blockIdx.x);
  const float* scores = task.scores + static_cast<int64_t>(head) * task.length;
  const float sink = task.sinks == nullptr ? -INFINITY : task.sinks[head];
  float largest = sink;
  for (int key = task.first_key + static_cast<int>(threadIdx.x); key < task.length; key += kThreads)
    largest = fmaxf(largest, scores[key]);
  largest = warp_max(largest);
  if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = largest;
  __syncthreads();
  for (float maximum : maxima) largest = fmaxf(largest, maximum);
  float total = 0;
  for (int key = task.first_key + static_cast<int>(threadIdx.x); key < task.length; key += kThreads)
    total += expf(scores[key] - largest);
  total = block_sum(total);
  if (threadIdx.x == 0) task.totals[head] = {largest, total + expf(sink - largest)};
}

// One thread for each sum.
__global__ void __launch_bounds__(kThreads) add_weights(const __grid_constant__ MassTask task) {
  const auto key = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (key < task.first_key || key >= task.num_sums) return;
  float mass = 0;
  for (int32_t head = 0; head < task.num_heads; ++head) {
    const float2 all = task.totals[head];
    mass += expf(task.scores[static_cast<int64_t>(head) * task.length + key] - all.x) / all.y;
  }
  task.sums[key] += mass;
}

template <class Activation, class Stored>
void launch_score(cudaStream_t stream, const MassTask& task, dim3 grid) {
  const int shared = task.group * task.kv.head_dim * static_cast<int>(sizeof(float));
  constexpr int kUsual = 48 << 10;
  if (shared > kUsual) {
    check_cuda(cudaFuncSetAttribute(score_keys<Activation, Stored>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
               "take shared memory for the queries of a group");
  }
  score_keys<Activation, Stored><<<grid, kThreads, static_cast<size_t>(shared), stream>>>(task);
}

template <class Activation>
void score(cudaStream_t stream, const MassTask& task, dim3 grid) {
  switch (task.kv.dtype) {
    case DType::kF32:
      return launch_score<Activation, float>(stream, task, grid);
    case DType::kF16:
      return launch_score<Activation, __half>(stream, task, grid);
    case DType::kBF16:
      return launch_score<Activation, __nv_bfloat16>(stream, task, grid);
    case DType::kI8:
      return launch_score<Activation, int8_t>(stream, task, grid);
    default:
      panic("K/V is f32, f16, bf16 or int8");
  }
}

unsigned parts_of(int32_t count, int32_t size) {
  return static_cast<unsigned>((count + size - 1) / size);
}

}  // namespace

void add_attention_mass(cudaStream_t stream,
                        TensorView qkv,
                        const AttentionOptions& options,
                        const BatchLayout& layout,
                        size_t which,
                        const KvLayerView& kv,
                        float* scratch,
                        TensorView sums) {
  const SequenceSlice& slice = layout.on_host[which];
  const int32_t length = slice.length();
  const int64_t row = slice.first_row + slice.num_rows - 1;
  const int32_t window = options.sliding_window;
  const int32_t heads = options.num_heads;
  const MassTask task{.q = qkv.row_range(row, row + 1).data,
                      .kv = kv,
                      .blocks = layout.blocks + static_cast<int64_t>(which) * layout.max_blocks,
                      .first_key = window > 0 ? std::max(0, length - window) : 0,
                      .length = length,
                      .num_heads = heads,
                      .group = heads / kv.num_kv_heads,
                      .scale = options.scale,
                      .soft_cap = options.soft_cap,
                      .sinks = options.sinks,
                      .scores = scratch + 2 * heads,
                      .totals = reinterpret_cast<float2*>(scratch),
                      .sums = static_cast<float*>(sums.data),
                      .num_sums = static_cast<int32_t>(sums.columns)};
  const dim3 grid(parts_of(length, kBlockTokens), static_cast<unsigned>(kv.num_kv_heads));
  with_activation_type(
      qkv.dtype, [&]<class Activation>(Activation) { score<Activation>(stream, task, grid); });
  check_launch("scores of a row");
  total_scores<<<static_cast<unsigned>(heads), kThreads, 0, stream>>>(task);
  check_launch("sums of a row's scores");
  if (sums.columns == 0) return;
  add_weights<<<parts_of(task.num_sums, kThreads), kThreads, 0, stream>>>(task);
  check_launch("attention mass");
}

}  // namespace droidspeak::cuda
