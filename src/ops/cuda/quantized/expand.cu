#include "device/cuda/cuda_check.h"
#include "ops/cuda/quantized/expand.h"
#include "ops/cuda/quantized/strip_code.cuh"

namespace droidspeak::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRun = 4;  // columns side by side that a lane has

// Columns [32 block + 16 half + 4 t, + kRun) of a chunk. Products of a scale and a quant are exact.
template <DType kDtype>
__device__ void expand_run(
    const LaneChunk<kDtype>& lane, uint32_t super, int block, int half, float (&out)[kRun]) {
  const float scale = lane.scale(block, half, super);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float2 quants = __bfloat1622float2(lane.pair(block, 2 * half + i));
    out[2 * i] = quants.x * scale;
    out[2 * i + 1] = quants.y * scale;
  }
  if constexpr (LaneChunk<kDtype>::kHasMinimum) {
    const float minimum = lane.minimum(block, super);
#pragma unroll
    for (int i = 0; i < kRun; ++i) out[i] += minimum;
  }
}

// Calls store(column, values) for all runs that a lane has of a chunk.
template <DType kDtype, class Store>
__device__ void expand_lane(const StripPointers& from,
                            int64_t strip,
                            int chunk,
                            int lane,
                            int columns,
                            const Store& store) {
  LaneChunk<kDtype> mine;
  uint32_t super = 0;
  mine.load(from, strip, chunk, lane, super);
#pragma unroll
  for (int block = 0; block < 4; ++block) {
    if (chunk * kStripColumns + 32 * block >= columns) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float values[kRun];
      expand_run<kDtype>(mine, super, block, half, values);
      store(chunk * kStripColumns + 32 * block + 16 * half + kRun * (lane % 4), values);
    }
  }
}

template <class Out>
__device__ void store_run(Out* to, const float (&values)[kRun]) {
  Pack<Out, kRun> pack;
#pragma unroll
  for (int i = 0; i < kRun; ++i) pack.values[i] = from_float<Out>(values[i]);
  store_pack<kRun>(to, pack);
}

struct ExpandTask {
  StripPointers from;
  int64_t first_strip;
  int64_t num_lanes;
  __nv_bfloat16* out;
  int rows;
  int columns;
};

// One thread for a lane of a chunk.
template <DType kDtype>
__global__ void __launch_bounds__(kThreads) expand_kernel(const __grid_constant__ ExpandTask task) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= task.num_lanes) return;
  const auto lane = static_cast<int>(index % 32);
  const int64_t at = index / 32;
  const auto chunk = static_cast<int>(at % task.from.num_chunks);
  const int64_t strip = at / task.from.num_chunks;
  const int64_t row = strip * kStripRows + lane / 4;
  if (row >= task.rows) return;
  __nv_bfloat16* out = task.out + row * task.columns;
  expand_lane<kDtype>(
      task.from, task.first_strip + strip, chunk, lane, task.columns,
      [&](int column, const float(&values)[kRun]) { store_run(out + column, values); });
}

struct EmbedTask {
  StripPointers from;
  const int32_t* tokens;
  int64_t first_row;
  int64_t num_rows;
  int columns;
};

// One block for a token, one thread for a lane of a chunk.
template <DType kDtype, class Out>
__global__ void __launch_bounds__(kThreads)
    embed_kernel(const __grid_constant__ EmbedTask task, Out* out, int64_t out_stride) {
  const int64_t row = task.tokens[blockIdx.x] - task.first_row;
  if (row < 0 || row >= task.num_rows) return;
  Out* to = out + blockIdx.x * out_stride;
  for (int i = static_cast<int>(threadIdx.x); i < 4 * task.from.num_chunks; i += kThreads) {
    const int lane = static_cast<int>(row % kStripRows) * 4 + i % 4;
    expand_lane<kDtype>(task.from, row / kStripRows, i / 4, lane, task.columns,
                        [&](int column, const float(&values)[kRun]) {
#pragma unroll
                          for (int j = 0; j < kRun; ++j)
                            to[column + j] = from_float<Out>(values[j]);
                        });
  }
}

}  // namespace

void expand_strips(cudaStream_t stream, const StripStack& stack, int64_t begin, TensorView out) {
  check(begin % kStripRows == 0 && begin + out.rows <= stack.shape.rows, "rows of a stack");
  check(out.dtype == DType::kBF16 && out.columns == stack.shape.columns &&
            out.row_stride == out.columns && is_packed(out, kRun),
        "room for expanded rows");
  if (out.rows == 0) return;
  const int64_t strips = (out.rows + kStripRows - 1) / kStripRows;
  const ExpandTask task{.from = StripPointers::of(stack),
                        .first_strip = begin / kStripRows,
                        .num_lanes = strips * stack.shape.num_chunks() * 32,
                        .out = static_cast<__nv_bfloat16*>(out.data),
                        .rows = static_cast<int>(out.rows),
                        .columns = static_cast<int>(out.columns)};
  with_strip_dtype(stack.shape.dtype, [&](auto dtype) {
    expand_kernel<dtype.value>
        <<<static_cast<unsigned>(divide_up(task.num_lanes, kThreads)), kThreads, 0, stream>>>(task);
  });
  check_launch("expand quantised weights");
}

void embed_strips(cudaStream_t stream,
                  const StripStack& stack,
                  const int32_t* tokens,
                  TensorView out) {
  const EmbedTask task{.from = StripPointers::of(stack),
                       .tokens = tokens,
                       .first_row = stack.first_row,
                       .num_rows = stack.shape.rows,
                       .columns = static_cast<int>(stack.shape.columns)};
  with_strip_dtype(stack.shape.dtype, [&](auto dtype) {
    with_activation_type(out.dtype, [&]<class Out>(Out) {
      embed_kernel<dtype.value, Out><<<static_cast<unsigned>(out.rows), kThreads, 0, stream>>>(
          task, static_cast<Out*>(out.data), out.row_stride);
    });
  });
  check_launch("look up quantised embeddings");
}

}  // namespace droidspeak::cuda
