// Rows of K and V between activations and the paged cache: norm, rotation, storage dtype. One warp
// works on one head of one row, which it keeps in shared memory as floats.
#include "device/cuda/cuda_check.h"
#include "ops/cuda/device_code/chain.cuh"
#include "ops/cuda/device_code/vector.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/rows/read_ahead.cuh"

namespace droidspeak::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kSize = 4;  // elements in one access of a lane

enum class Turn { kForward, kBack };

// What kernels see of a batch, and of the tensor whose rows are moved.
template <class T>
struct RowsTask {
  T* rows;
  int64_t stride;
  const int32_t* row_slice;
  const int32_t* row_position;
  const int32_t* blocks;
  int32_t max_blocks;
  RopeOptions rope;
  KvLayerView kv;
  int32_t num_rows;
  ReadAhead ahead;
};

template <class T>
RowsTask<T> make_task(TensorView rows,
                      const RopeOptions& rope,
                      const BatchLayout& layout,
                      const KvLayerView& kv,
                      const ReadAhead& ahead = {}) {
  check(rope.head_dim % kSize == 0 && rows.row_stride % kSize == 0 &&
            reinterpret_cast<uintptr_t>(rows.data) % (kSize * sizeof(T)) == 0,
        "heads start at multiples of four elements");
  return {.rows = static_cast<T*>(rows.data),
          .stride = rows.row_stride,
          .row_slice = layout.row_slice,
          .row_position = layout.row_position,
          .blocks = layout.blocks,
          .max_blocks = layout.max_blocks,
          .rope = rope,
          .kv = kv,
          .num_rows = layout.num_rows,
          .ahead = ahead};
}

// Where one token of one head lies in the cache, counted in heads.
template <class T>
__device__ int64_t slot_of(const RowsTask<T>& task, int row, int position, int head) {
  const int32_t block = task.blocks[static_cast<int64_t>(task.row_slice[row]) * task.max_blocks +
                                    position / kBlockTokens];
  return (static_cast<int64_t>(block) * task.kv.num_kv_heads + head) * kBlockTokens +
         position % kBlockTokens;
}

template <class T>
__device__ void load_head(const T* from, int size, int lane, float* head) {
  for (int i = lane * kSize; i < size; i += 32 * kSize) {
    const Pack<T, kSize> pack = load_pack<kSize>(from + i);
    for (int e = 0; e < kSize; ++e) head[i + e] = to_float(pack.values[e]);
  }
  __syncwarp();
}

template <class T>
__device__ void store_head(const float* head, int size, int lane, T* to) {
  for (int i = lane * kSize; i < size; i += 32 * kSize) {
    Pack<T, kSize> pack;
    for (int e = 0; e < kSize; ++e) pack.values[e] = from_float<T>(head[i + e]);
    store_pack<kSize>(to + i, pack);
  }
}

// scale * int8, one scale for a head.
__device__ void store_int8(const float* head, int size, int lane, int8_t* to, float* scale) {
  float largest = 0;
  for (int i = lane; i < size; i += 32) largest = fmaxf(largest, fabsf(head[i]));
  largest = warp_max(largest);
  bool is_finite = true;  // a maximum loses NaN
  for (int i = lane; i < size; i += 32) is_finite = is_finite && isfinite(head[i]);
  if (!__all_sync(~0u, is_finite)) largest = NAN;
  const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
  for (int i = lane * kSize; i < size; i += 32 * kSize) {
    Pack<int8_t, kSize> pack;
    for (int e = 0; e < kSize; ++e)
      pack.values[e] = static_cast<int8_t>(__float2int_rn(head[i + e] * inverse));
    store_pack<kSize>(to + i, pack);
  }
  if (lane == 0) *scale = largest / 127.0f;
}

template <class Stored>
__device__ void store_cached(
    const float* head, int size, int lane, int64_t slot, void* cache, float* scales) {
  auto* to = static_cast<Stored*>(cache) + slot * size;
  if constexpr (std::is_same_v<Stored, int8_t>) {
    store_int8(head, size, lane, to, scales + slot);
  } else {
    store_head(head, size, lane, to);
  }
}

template <class Stored>
__device__ void load_cached(
    const void* cache, const float* scales, int size, int lane, int64_t slot, float* head) {
  const auto* from = static_cast<const Stored*>(cache) + slot * size;
  if constexpr (std::is_same_v<Stored, int8_t>) {
    const float scale = scales[slot];
    for (int i = lane * kSize; i < size; i += 32 * kSize) {
      const Pack<int8_t, kSize> pack = load_pack<kSize>(from + i);
      for (int e = 0; e < kSize; ++e) head[i + e] = scale * static_cast<float>(pack.values[e]);
    }
    __syncwarp();
  } else {
    load_head(from, size, lane, head);
  }
}

__device__ void norm_head(float* head, const float* weight, float epsilon, int size, int lane) {
  float squares = 0;
  for (int i = lane; i < size; i += 32) squares += head[i] * head[i];
  const float factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(size) + epsilon);
  for (int i = lane; i < size; i += 32) head[i] *= factor * weight[i];
  __syncwarp();
}

// Pairs are (i, i + half). The table's row: cosines of the pairs, then sines, all times the
// attention factor, which turning back takes out again.
template <Turn kTurn>
__device__ void rotate(float* head, const RopeOptions& rope, int position, int lane) {
  const float* angles = rope.table + static_cast<int64_t>(position) * rope.rotary_dim;
  const int half = rope.rotary_dim / 2;
  const float shrink =
      kTurn == Turn::kForward ? 1.0f : 1.0f / (rope.attention_factor * rope.attention_factor);
  for (int i = lane; i < half; i += 32) {
    const float x = head[i];
    const float y = head[i + half];
    const float cosine = angles[i];
    const float sine = kTurn == Turn::kForward ? angles[i + half] : -angles[i + half];
    head[i] = (x * cosine - y * sine) * shrink;
    head[i + half] = (y * cosine + x * sine) * shrink;
  }
  __syncwarp();
}

// grid: (rows, heads of a qkv row / kWarps)
template <class T, class Stored>
__global__ void rotate_and_store_kernel(RowsTask<T> task) {
  extern __shared__ float heads[];
  const RopeOptions& rope = task.rope;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row = static_cast<int>(blockIdx.x);
  const int index = static_cast<int>(blockIdx.y) * kWarps + warp;
  const int key = index - rope.num_heads;
  const int value = key - rope.num_kv_heads;
  let_next_start();
  // No kernel of a chain writes the layout.
  const bool has_head = value < rope.num_kv_heads && task.row_slice[row] >= 0;
  const int position = has_head ? task.row_position[row] : 0;
  const int64_t slot =
      has_head && key >= 0 ? slot_of(task, row, position, value >= 0 ? value : key) : 0;
  wait_for_previous();
  if (!has_head) return;
  float* head = heads + warp * rope.head_dim;
  T* data = task.rows + row * task.stride + static_cast<int64_t>(index) * rope.head_dim;
  load_head(data, rope.head_dim, lane, head);
  if (value >= 0)
    return store_cached<Stored>(head, rope.head_dim, lane, slot, task.kv.v, task.kv.v_scale);
  const float* weight = key < 0 ? rope.q_norm : rope.k_norm;
  if (weight != nullptr) norm_head(head, weight, rope.norm_epsilon, rope.head_dim, lane);
  rotate<Turn::kForward>(head, rope, position, lane);
  if (key < 0) return store_head(head, rope.head_dim, lane, data);
  store_cached<Stored>(head, rope.head_dim, lane, slot, task.kv.k, task.kv.k_scale);
}

// The usual case in registers: bf16 rows and cache, heads of 128 that rotate whole, no norms. A
// block works on one row; a lane holds two neighbouring elements of each half of a head.
// grid: (rows and blocks that read ahead)
__global__ void rotate_and_store_wide_kernel(RowsTask<__nv_bfloat16> task) {
  constexpr int kHead = 128;
  constexpr int kBatch = 6;  // heads in flight
  const RopeOptions& rope = task.rope;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(blockIdx.x);
  let_next_start();
  if (row >= task.num_rows) {
    wait_for_previous();
    const auto rows = static_cast<unsigned>(task.num_rows);
    return read_ahead(task.ahead, blockIdx.x - rows, gridDim.x - rows);
  }
  // No kernel of a chain writes the layout and the table.
  const bool has_slice = task.row_slice[row] >= 0;
  const int position = has_slice ? task.row_position[row] : 0;
  const float* angles = rope.table + static_cast<int64_t>(position) * kHead + 2 * lane;
  const float2 cosine = *reinterpret_cast<const float2*>(angles);
  const float2 sine = *reinterpret_cast<const float2*>(angles + kHead / 2);
  const int64_t slot = has_slice ? slot_of(task, row, position, 0) : 0;
  wait_for_previous();
  if (!has_slice) return;
  auto cached = [&](void* cache, int head) {
    return static_cast<__nv_bfloat16*>(cache) + (slot + head * kBlockTokens) * kHead;
  };
  const int heads = rope.num_heads + 2 * rope.num_kv_heads;
  __nv_bfloat16* data = task.rows + row * task.stride;
  for (int first = static_cast<int>(threadIdx.x) / 32 * kBatch; first < heads;
       first += kWarps * kBatch) {
    float2 low[kBatch];
    float2 high[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (first + b >= heads) continue;
      const auto* pairs =
          reinterpret_cast<const __nv_bfloat162*>(data + (first + b) * kHead) + lane;
      low[b] = __bfloat1622float2(pairs[0]);
      high[b] = __bfloat1622float2(pairs[kHead / 4]);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int head = first + b;
      if (head >= heads) continue;
      const int key = head - rope.num_heads;
      const int value = key - rope.num_kv_heads;
      float2 x = low[b];
      float2 y = high[b];
      if (value < 0) {
        x = {low[b].x * cosine.x - high[b].x * sine.x, low[b].y * cosine.y - high[b].y * sine.y};
        y = {high[b].x * cosine.x + low[b].x * sine.x, high[b].y * cosine.y + low[b].y * sine.y};
      }
      __nv_bfloat16* to = key < 0     ? data + head * kHead
                          : value < 0 ? cached(task.kv.k, key)
                                      : cached(task.kv.v, value);
      auto* pairs = reinterpret_cast<__nv_bfloat162*>(to) + lane;
      pairs[0] = __floats2bfloat162_rn(x.x, x.y);
      pairs[kHead / 4] = __floats2bfloat162_rn(y.x, y.y);
    }
  }
}

bool is_usual(const TensorView& qkv, const RopeOptions& rope, const KvLayerView& kv) {
  return qkv.dtype == DType::kBF16 && kv.dtype == DType::kBF16 && rope.head_dim == 128 &&
         rope.rotary_dim == 128 && rope.q_norm == nullptr && rope.k_norm == nullptr;
}

// grid: (rows, heads of K and of V / kWarps)
template <class Stored, Turn kTurn>
__global__ void move_kv_kernel(RowsTask<float> task) {
  extern __shared__ float heads[];
  const RopeOptions& rope = task.rope;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row = static_cast<int>(blockIdx.x);
  const int index = static_cast<int>(blockIdx.y) * kWarps + warp;
  if (index >= 2 * rope.num_kv_heads) return;
  const bool is_key = index < rope.num_kv_heads;
  const int position = task.row_position[row];
  const int64_t slot = slot_of(task, row, position, is_key ? index : index - rope.num_kv_heads);
  void* cache = is_key ? task.kv.k : task.kv.v;
  float* scales = is_key ? task.kv.k_scale : task.kv.v_scale;
  float* head = heads + warp * rope.head_dim;
  float* data = task.rows + row * task.stride + static_cast<int64_t>(index) * rope.head_dim;
  if constexpr (kTurn == Turn::kBack) {
    load_cached<Stored>(cache, scales, rope.head_dim, lane, slot, head);
  } else {
    load_head(data, rope.head_dim, lane, head);
  }
  if (is_key) rotate<kTurn>(head, rope, position, lane);
  if constexpr (kTurn == Turn::kBack) {
    store_head(head, rope.head_dim, lane, data);
  } else {
    store_cached<Stored>(head, rope.head_dim, lane, slot, cache, scales);
  }
}

template <class Body>
void with_stored_type(DType dtype, const Body& body) {
  if (dtype == DType::kI8) return body(int8_t{});
  with_plain_type(dtype, body);
}

struct Launch {
  dim3 grid;
  unsigned threads;
  size_t shared_bytes;
};

Launch launch_of(int32_t rows, int32_t heads, const RopeOptions& rope) {
  return {
      .grid = dim3(static_cast<unsigned>(rows), static_cast<unsigned>(divide_up(heads, kWarps))),
      .threads = 32 * kWarps,
      .shared_bytes = sizeof(float) * kWarps * static_cast<size_t>(rope.head_dim)};
}

template <Turn kTurn>
void move_kv(cudaStream_t stream,
             const RopeOptions& options,
             const BatchLayout& layout,
             const KvLayerView& kv,
             TensorView rows) {
  const Launch launch = launch_of(layout.num_rows, 2 * options.num_kv_heads, options);
  with_stored_type(kv.dtype, [&]<class Stored>(Stored) {
    move_kv_kernel<Stored, kTurn><<<launch.grid, launch.threads, launch.shared_bytes, stream>>>(
        make_task<float>(rows, options, layout, kv));
  });
  check_launch("move cached rows");
}

}  // namespace

void rotate_and_store(cudaStream_t stream,
                      TensorView qkv,
                      const RopeOptions& options,
                      const BatchLayout& layout,
                      const KvLayerView& kv,
                      const ReadAhead& ahead) {
  if (is_usual(qkv, options, kv)) {
    const unsigned others = ahead.pieces > 0 ? ReadAhead::kBlocks : 0;
    const dim3 grid(static_cast<unsigned>(layout.num_rows) + others);
    return launch_chained(rotate_and_store_wide_kernel,
                          {grid, 32 * kWarps, 0, stream, layout.num_rows},
                          make_task<__nv_bfloat16>(qkv, options, layout, kv, ahead));
  }
  const int32_t heads = options.num_heads + 2 * options.num_kv_heads;
  const Launch launch = launch_of(layout.num_rows, heads, options);
  with_activation_type(qkv.dtype, [&]<class T>(T) {
    with_stored_type(kv.dtype, [&]<class Stored>(Stored) {
      launch_chained(rotate_and_store_kernel<T, Stored>,
                     {launch.grid, launch.threads, launch.shared_bytes, stream, layout.num_rows},
                     make_task<T>(qkv, options, layout, kv));
    });
  });
}

void gather_kv(cudaStream_t stream,
               const RopeOptions& options,
               const BatchLayout& layout,
               const KvLayerView& kv,
               TensorView rows) {
  move_kv<Turn::kBack>(stream, options, layout, kv, rows);
}

void scatter_kv(cudaStream_t stream,
                const RopeOptions& options,
                const BatchLayout& layout,
                const KvLayerView& kv,
                TensorView rows) {
  move_kv<Turn::kForward>(stream, options, layout, kv, rows);
}

}  // namespace droidspeak::cuda
