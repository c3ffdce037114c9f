#include <algorithm>
#include <utility>

#include "device/cuda/cuda_check.h"
#include "ops/cuda/cache_hints.cuh"
#include "ops/cuda/chain.cuh"
#include "ops/cuda/few_rows.h"
#include "ops/cuda/few_rows_input.cuh"
#include "ops/cuda/few_rows_task.cuh"
#include "ops/cuda/tensor_core.cuh"

namespace droidspeak::cuda {
namespace {

constexpr int64_t kMostColumns = 16384;      // the input lies in shared memory
constexpr int kMostSharedBytes = 200 << 10;  // what four normed rows of so many take
constexpr int kDepth = 4;                    // pairs of halves that a lane loads at a time
constexpr int kBuffers = 2;                  // so often before it multiplies
constexpr int kStepColumns = kWarps * kPairColumns;
constexpr int kPieceColumns = kDepth * kStepColumns;
constexpr int kBlocks = 4;                  // on a multiprocessor
constexpr int kPrefetchedBytes = 64 << 10;  // of each block's share

// What a lane has of a piece: of its matrix row, in the first and in the second half of pairs.
struct Piece {
  uint4 low[kDepth];
  uint4 high[kDepth];
};

// Two tiles in turn.
using Parts = TileParts[2];

// Zeros if it is not there. Past the nearest cache, and the first to leave the next one.
__device__ inline uint4 load_weights(const __nv_bfloat16* from, bool is_there, uint64_t policy) {
  uint4 value;
  asm volatile(
      "{\n"
      ".reg .pred there;\n"
      "setp.ne.s32 there, %5, 0;\n"
      "mov.b32 %0, 0;\n"
      "mov.b32 %1, 0;\n"
      "mov.b32 %2, 0;\n"
      "mov.b32 %3, 0;\n"
      "@there ld.global.nc.L1::no_allocate.L2::cache_hint.v4.b32 {%0,%1,%2,%3}, [%4], %6;\n"
      "}\n"
      : "=&r"(value.x), "=&r"(value.y), "=&r"(value.z), "=&r"(value.w)
      : "l"(from), "r"(static_cast<int>(is_there)), "l"(policy));
  return value;
}

// Loads the pieces of a share one after the other; all warps have the same number of them.
class Loader {
 public:
  __device__ Loader(const ProductTask& task, const Share& share)
      : task_(task),
        share_(share),
        group_(static_cast<int>(threadIdx.x) % 32 / 4),
        first_(static_cast<int>(threadIdx.x) / 32 * kPairColumns +
               static_cast<int>(threadIdx.x) % 4 * kVector),
        policy_(evict_first_policy()) {
    open();
  }

  __device__ void load(Piece& piece) {
    const __nv_bfloat16* from = row_ + base_;
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const int column = i * kStepColumns;
      piece.low[i] = load_weights(from + column, base_ + column < limit_, policy_);
      piece.high[i] = load_weights(from + column + kHalfColumns,
                                   base_ + column + kHalfColumns < limit_, policy_);
    }
    base_ += kPieceColumns;
    if (base_ - first_ < task_.columns) return;
    ++tile_;
    open();
  }

  // To the cache that all multiprocessors share, what comes after the pieces that are loaded.
  __device__ void prefetch() const {
    const int row_bytes = task_.columns * static_cast<int>(sizeof(__nv_bfloat16));
    const int halves = task_.gated == nullptr ? 1 : 2;
    const int first = share_.tile(tile_).first_unit;
    const int units = min(kPrefetchedBytes / (row_bytes * halves), share_.end() - first);
    for (int i = static_cast<int>(threadIdx.x); i < units * halves; i += kThreads) {
      const int64_t row = first + i % units + i / units * task_.num_units();
      prefetch_bulk(task_.weights + row * task_.columns, static_cast<uint32_t>(row_bytes));
    }
  }

 private:
  __device__ void open() {
    const Tile tile = share_.tile(tile_);
    base_ = first_;
    limit_ = tile.has(task_, group_) ? task_.columns : 0;
    row_ = task_.weights;
    if (limit_ > 0) row_ += static_cast<int64_t>(tile.output_of(task_, group_)) * task_.columns;
    if (tile_ == share_.num_tiles()) let_next_start();  // its loads come right after ours
  }

  const ProductTask& task_;
  const Share& share_;
  int group_;  // matrix row of a tile
  int first_;  // column of a piece
  uint64_t policy_;
  int tile_ = 0;
  int base_;   // column
  int limit_;  // columns that there are
  const __nv_bfloat16* row_;
};

// A tensor core multiplies [16, 16] by [16, 8]. Of its 16 rows the first eight are the matrix rows
// of the tile in one half of a pair of columns, the others the same rows in the other half. Of its
// 8 columns the first four are the input rows in the first half, the others the same in the other
// one. So two quarters of a result are of use, and tiles of eight matrix rows suffice. The order of
// columns within a half is any, as long as it is that of both factors: a lane's eight neighbouring
// ones are the four pairs that two multiplications want of it.
class Multiplier {
 public:
  __device__ Multiplier(const ProductTask& task, const __nv_bfloat16* in)
      : columns_(task.columns),
        warp_(static_cast<int>(threadIdx.x) / 32),
        group_(static_cast<int>(threadIdx.x) % 32 / 4),
        member_(static_cast<int>(threadIdx.x) % 4) {
    const int row = group_ % kMostFewRows;
    const int half = group_ / kMostFewRows;
    has_row_ = row < task.rows;
    in_ = in + row * task.in_pitch() + half * kHalfColumns + member_ * kVector;
  }

  // base: the first column of the block's piece.
  __device__ void multiply(const Piece& piece, int base) {
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const int column = base + i * kStepColumns + warp_ * kPairColumns;
      if (column >= columns_) continue;
      const uint4 low = piece.low[i];
      const uint4 high = piece.high[i];
      uint4 x{0, 0, 0, 0};
      if (has_row_) x = *reinterpret_cast<const uint4*>(in_ + column);
      multiply_add<__nv_bfloat16>(sums_[0], {low.x, high.x, low.y, high.y}, x.x, x.y);
      multiply_add<__nv_bfloat16>(sums_[1], {low.z, high.z, low.w, high.w}, x.z, x.w);
    }
  }

  // Hands the sums of a tile over.
  __device__ void finish(TileParts& parts) {
    const bool is_first_half = member_ < 2;
    float even = is_first_half ? sums_[0][0] + sums_[1][0] : sums_[0][2] + sums_[1][2];
    float odd = is_first_half ? sums_[0][1] + sums_[1][1] : sums_[0][3] + sums_[1][3];
    even += __shfl_xor_sync(~0u, even, 2);
    odd += __shfl_xor_sync(~0u, odd, 2);
    if (is_first_half) {
      float(&row)[kMostFewRows] = parts[warp_][group_];
      row[2 * member_] = even;
      row[2 * member_ + 1] = odd;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sums_[0][i] = sums_[1][i] = 0;
  }

 private:
  int columns_;
  int warp_;
  int group_;   // matrix row of the tile; input row and half
  int member_;  // which columns
  bool has_row_;
  const __nv_bfloat16* in_;
  float sums_[2][4] = {};
};

// The products of a block's share, tile by tile.
class ShareProduct {
 public:
  __device__ ShareProduct(const ProductTask& task,
                          const Share& share,
                          const __nv_bfloat16* in,
                          Parts& parts)
      : task_(task), share_(share), parts_(parts), multiplier_(task, in) {
    if (warp() < share.num_tiles()) before_ = TileOutput(task, share.tile(warp())).before();
  }

  // pieces: the first of the share, on their way.
  __device__ void run(Loader& loader, Piece (&pieces)[kBuffers]) {
    run(loader, pieces, std::make_integer_sequence<int, kBuffers>());
  }

 private:
  // In registers, every piece needs code of its own.
  template <int... kIndex>
  __device__ __forceinline__ void run(Loader& loader,
                                      Piece (&pieces)[kBuffers],
                                      std::integer_sequence<int, kIndex...>) {
    while ((takes_next(loader, pieces[kIndex]) && ...)) {
    }
  }

  // Puts another piece in its place. False after the last one.
  __device__ __forceinline__ bool takes_next(Loader& loader, Piece& piece) {
    multiplier_.multiply(piece, base_);
    loader.load(piece);
    base_ += kPieceColumns;
    if (base_ < task_.columns) return true;
    base_ = 0;
    multiplier_.finish(parts_[tile_ % 2]);
    __syncthreads();
    if (tile_ % kWarps == warp()) store();
    return ++tile_ < share_.num_tiles();
  }

  __device__ void store() {
    TileOutput(task_, share_.tile(tile_)).store(before_, parts_[tile_ % 2]);
    const int next = tile_ + kWarps;
    if (next < share_.num_tiles()) before_ = TileOutput(task_, share_.tile(next)).before();
  }

  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }

  const ProductTask& task_;
  const Share& share_;
  Parts& parts_;
  Multiplier multiplier_;
  int tile_ = 0;
  int base_ = 0;      // column
  float before_ = 0;  // of the next tile that this warp stores
};

__global__ void __launch_bounds__(kThreads, kBlocks)
    stream_matrix_kernel(const __grid_constant__ ProductTask task) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ Parts parts;
  __shared__ InputReader::Squares squares;
  const Share share(task);
  Loader loader(task, share);
  Piece pieces[kBuffers];
#pragma unroll
  for (int i = 0; i < kBuffers; ++i) loader.load(pieces[i]);
  const InputReader reader(task, memory, squares);
  reader.start();
  loader.prefetch();
  wait_for_previous();
  reader.read();
  ShareProduct(task, share, reader.rows(), parts).run(loader, pieces);
#endif
}

int attribute_of_device(cudaDeviceAttr attribute) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, attribute, 0), "read an attribute of the device");
  return value;
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

}  // namespace

bool few_rows_support(const CudaMatrix& weights, TensorView in, TensorView out) {
  static const bool has_bulk_copies = attribute_of_device(cudaDevAttrComputeCapabilityMajor) >= 9;
  const TensorView matrix = weights.view();
  if (!has_bulk_copies || in.rows < 1 || in.rows > kMostFewRows || matrix.rows < 1) return false;
  if (matrix.dtype != DType::kBF16 || in.dtype != DType::kBF16) return false;
  return is_packed(in, kVector) && is_packed(matrix, kVector) && matrix.columns <= kMostColumns &&
         (out.dtype == DType::kBF16 || out.dtype == DType::kF32);
}

bool few_rows_can_norm(TensorView in, const float* weight, TensorView out) {
  return in.dtype == DType::kBF16 && in.rows <= kMostFewRows && is_packed(in, kVector) &&
         is_packed(out, kVector) && is_aligned(weight);
}

void multiply_few_rows(cudaStream_t stream, const FewRowsProduct& product) {
  static const int num_multiprocessors = attribute_of_device(cudaDevAttrMultiProcessorCount);
  static const cudaError_t is_allowed = cudaFuncSetAttribute(
      stream_matrix_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostSharedBytes);
  check_cuda(is_allowed, "use shared memory for products");
  const ProductTask task = task_of(product);
  const int blocks = std::min(num_multiprocessors * kBlocks, task.num_tiles());
  launch_chained(stream_matrix_kernel,
                 {.grid = dim3(static_cast<unsigned>(blocks)),
                  .block = kThreads,
                  .shared_bytes = InputReader::bytes(task),
                  .stream = stream,
                  .rows = task.rows},
                 task);
}

}  // namespace droidspeak::cuda
