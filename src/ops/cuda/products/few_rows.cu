#include "device/cuda/cuda_check.h"
#include "ops/cuda/device_code/chain.cuh"
#include "ops/cuda/device_code/read_once.cuh"
#include "ops/cuda/device_code/runs_here.h"
#include "ops/cuda/products/few_rows.h"
#include "ops/cuda/products/few_rows_input.cuh"
#include "ops/cuda/products/few_rows_task.cuh"
#include "ops/cuda/quantized/strip_product.h"

namespace droidspeak::cuda {
namespace {

constexpr int kMostSharedBytes = 200 << 10;  // what four normed rows of so many take

// What a lane has of a chunk of columns, one access for each matrix row of the tile.
using Chunk = uint4[kTileOutputs];

// Loads what a warp multiplies, in the same order: groups of columns of a tile, then the next tile.
class Loader {
 public:
  __device__ explicit Loader(const ProductTask& task)
      : task_(task),
        lane_column_(static_cast<int>(threadIdx.x) % 32 * kVector),
        policy_(evict_first_policy()) {
    open();
  }

  // The chunk of the group at hand.
  __device__ __forceinline__ void load(int index, Chunk& chunk) const {
    const int column = column_ + index * kChunkColumns;
    const bool is_there = column < limit_;
#pragma unroll
    for (int place = 0; place < kTileOutputs; ++place)
      read_once(chunk[place], rows_[place / 2] + (place % 2) * steps_[place / 2] + column, is_there,
                policy_);
  }

  __device__ void next_group() {
    column_ += kGroupColumns;
    if (column_ - lane_column_ < limit_) return;
    tile_ += tile_step();
    open();
  }

 private:
  __device__ void open() {
    column_ = lane_column_;
    limit_ = 0;
    if (tile_ >= task_.num_tiles()) return;
    limit_ = task_.columns;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int first = task_.output_of(tile_, 2 * half);
      rows_[half] = task_.weights + static_cast<int64_t>(first) * task_.columns;
      steps_[half] = (task_.output_of(tile_, 2 * half + 1) - first) * task_.columns;
    }
  }

  const ProductTask& task_;
  int lane_column_;
  uint64_t policy_;
  int tile_ = first_tile();
  int column_;                    // of this lane in the first chunk
  int limit_;                     // columns that there are, 0 after the last group
  const __nv_bfloat16* rows_[2];  // of the first and the third matrix row of the tile
  int steps_[2];                  // to the second and the fourth
};

__device__ inline void to_floats(uint4 vector, float (&out)[kVector]) {
  const uint32_t words[] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    out[2 * i] = __uint_as_float(words[i] << 16);
    out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}

// Sums of a tile: matrix row by matrix row, of each all rows of the input.
template <int kRows>
class TileSums {
 public:
  __device__ __forceinline__ void add(const Chunk& chunk, const __nv_bfloat16* in, int pitch) {
    float x[kRows][kVector];
#pragma unroll
    for (int row = 0; row < kRows; ++row)
      to_floats(*reinterpret_cast<const uint4*>(in + row * pitch), x[row]);
#pragma unroll
    for (int place = 0; place < kTileOutputs; ++place) {
      float weights[kVector];
      to_floats(chunk[place], weights);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
#pragma unroll
        for (int e = 0; e < kVector; ++e)
          sums_[place * kRows + row] = fmaf(weights[e], x[row][e], sums_[place * kRows + row]);
      }
    }
  }

  // Over the warp. Every lane gets one of the values: those of the lanes that TileOutput names.
  __device__ float reduce() {
    halve<kValues / 2, 16>();
    float sum = sums_[0];
#pragma unroll
    for (int bit = TileOutput<kRows>::kValueLanes / 2; bit > 0; bit /= 2)
      sum += __shfl_xor_sync(~0u, sum, bit);
    return sum;
  }

 private:
  static constexpr int kValues = TileOutput<kRows>::kValues;

  // Of two lanes that differ in a bit, each goes on with half of the values.
  template <int kHalf, int kBit>
  __device__ __forceinline__ void halve() {
    const bool is_upper = (threadIdx.x & kBit) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float sent = is_upper ? sums_[i] : sums_[i + kHalf];
      const float kept = is_upper ? sums_[i + kHalf] : sums_[i];
      sums_[i] = kept + __shfl_xor_sync(~0u, sent, kBit);
    }
    if constexpr (kHalf > 1) halve<kHalf / 2, kBit / 2>();
  }

  float sums_[kValues] = {};
};

template <int kRows>
__device__ void multiply_tile(const ProductTask& task,
                              int tile,
                              const __nv_bfloat16* in,
                              Loader& loader,
                              Chunk (&chunks)[kDepth]) {
  const TileOutput<kRows> output(task, tile);
  const float before = output.before();
  const int columns = task.columns;
  const int pitch = task.in_pitch();
  in += static_cast<int>(threadIdx.x) % 32 * kVector;
  TileSums<kRows> sums;
  for (int first = 0; first < columns; first += kGroupColumns) {
    loader.next_group();
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const int column = first + i * kChunkColumns;
      if (column < columns) sums.add(chunks[i], in + column, pitch);
      loader.load(i, chunks[i]);
    }
  }
  output.store(before + sums.reduce());
}

template <int kRows>
__global__ void __launch_bounds__(kThreads)
    multiply_few_rows_kernel(const __grid_constant__ ProductTask task) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ InputReader::Squares squares;
  let_next_start();
  Loader loader(task);
  Chunk chunks[kDepth];
#pragma unroll
  for (int i = 0; i < kDepth; ++i) loader.load(i, chunks[i]);
  const InputReader reader(task, memory, squares);
  reader.start();
  wait_for_previous();
  reader.read();
  const int tiles = task.num_tiles();
  for (int tile = first_tile(); tile < tiles; tile += tile_step())
    multiply_tile<kRows>(task, tile, reader.rows(), loader, chunks);
#endif
}

bool is_aligned(const float* weight) {
  return reinterpret_cast<uintptr_t>(weight) % sizeof(Pack<float, kVector>) == 0;
}

ProductTask task_of(const FewRowsProduct& product) {
  const TensorView matrix = product.weights.view();
  ProductTask task{};
  task.weights = static_cast<const __nv_bfloat16*>(matrix.data);
  task.in = static_cast<const __nv_bfloat16*>(product.in.data);
  task.in_stride = product.in.row_stride;
  task.rows = static_cast<int>(product.in.rows);
  task.outputs = static_cast<int>(matrix.rows);
  task.columns = static_cast<int>(matrix.columns);
  task.out = product.out.data;
  task.out_stride = product.out.row_stride;
  task.out_dtype = product.out.dtype;
  task.accumulate = product.accumulate;
  task.bias = product.bias;
  if (product.norm) {
    check(is_packed(product.norm->out, kVector) && is_aligned(product.norm->weight),
          "norms before a product work on packs");
    task.norm_weight = product.norm->weight;
    task.norm_epsilon = product.norm->epsilon;
    task.normed = static_cast<__nv_bfloat16*>(product.norm->out.data);
    task.normed_stride = product.norm->out.row_stride;
  }
  if (product.gate) {
    check(product.out.dtype == DType::kBF16 && task.outputs == 2 * product.gate->out.columns,
          "shapes of a product with a gate");
    task.gated = static_cast<__nv_bfloat16*>(product.gate->out.data);
    task.gated_stride = product.gate->out.row_stride;
    task.activation = product.gate->activation;
  }
  return task;
}

template <int kRows>
void launch(cudaStream_t stream, const ProductTask& task) {
  static const int num_multiprocessors = attribute_of_device(cudaDevAttrMultiProcessorCount);
  static const cudaError_t is_allowed =
      cudaFuncSetAttribute(multiply_few_rows_kernel<kRows>,
                           cudaFuncAttributeMaxDynamicSharedMemorySize, kMostSharedBytes);
  check_cuda(is_allowed, "use shared memory for products");
  launch_chained(multiply_few_rows_kernel<kRows>,
                 {.grid = dim3(static_cast<unsigned>(num_multiprocessors)),
                  .block = kThreads,
                  .shared_bytes = InputReader::bytes(task, kRows),
                  .stream = stream,
                  .rows = kRows},
                 task);
}

}  // namespace

bool few_rows_support(const CudaMatrix& weights, TensorView in, TensorView out) {
  if (weights.is_quantized()) return strip_products_support(weights, in, out);
  static const bool has_kernel =
      runs_here(multiply_few_rows_kernel<kMostFewRows>, kMostSharedBytes);
  const TensorView matrix = weights.view();
  if (!has_kernel || in.rows < 1 || in.rows > kMostFewRows || matrix.rows < 1) return false;
  if (matrix.dtype != DType::kBF16 || in.dtype != DType::kBF16) return false;
  return is_packed(in, kVector) && is_packed(matrix, kVector) &&
         matrix.columns <= kMostColumnsOfFewRows &&
         (out.dtype == DType::kBF16 || out.dtype == DType::kF32);
}

bool few_rows_can_norm(TensorView in, const float* weight, TensorView out) {
  return in.dtype == DType::kBF16 && in.rows <= kMostFewRows &&
         in.columns <= kMostColumnsOfFewRows && out.dtype == DType::kBF16 &&
         is_packed(in, kVector) && is_packed(out, kVector) && is_aligned(weight);
}

void multiply_few_rows(cudaStream_t stream, const FewRowsProduct& product) {
  if (product.weights.is_quantized()) return multiply_strips(stream, product);
  const ProductTask task = task_of(product);
  if (task.rows == 1) return launch<1>(stream, task);
  if (task.rows == 2) return launch<2>(stream, task);
  launch<4>(stream, task);
}

}  // namespace droidspeak::cuda
