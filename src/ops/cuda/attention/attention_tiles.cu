#include <algorithm>
#include <cstdlib>

#include "base/check.h"
#include "ops/cuda/attention/attention_stream.h"
#include "ops/cuda/attention/attention_tile_kernel.cuh"
#include "ops/cuda/attention/attention_tiles.h"
#include "ops/cuda/device_code/chain.cuh"

namespace droidspeak::cuda {
namespace {

// How the keys of a slice are split: enough blocks for one sequence, few partial sums for many.
struct Splitting {
  int32_t step;
  int32_t most;
};

constexpr Splitting kDecodeSplits{128, 32};
constexpr Splitting kSuffixSplits{256, 16};
constexpr Splitting kGatheredSplits{1024, 4};
// With this many blocks memory is busy: then they go through several splits.
constexpr int32_t kEnoughBlocks = 768;

// With this many splits blocks that stay go through them.
int32_t enough_splits() {
  const char* value = std::getenv("DS_STREAM_SPLITS");
  return value == nullptr ? 1024 : std::atoi(value);
}

constexpr size_t kMostGatheredScratch = size_t{256} << 20;  // with more, nothing is split
constexpr double kLog2E = 1.4426950408889634;

static_assert(kDecodeSplits.most <= kMostSplits && kSuffixSplits.most <= kMostSplits &&
              kGatheredSplits.most <= kMostSplits);

// A warp for a row and head of a slice that was split: [four heads, row, slice] = blockIdx.
template <int kHeadDim>
__global__ void __launch_bounds__(kTileThreads)
    combine_splits(const __grid_constant__ TileArguments a) {
  const auto slice = static_cast<int32_t>(blockIdx.z);
  const auto row = static_cast<int32_t>(blockIdx.y);
  const auto head = static_cast<int32_t>(blockIdx.x * (kTileThreads / 32) + threadIdx.x / 32);
  let_next_start();
  const int32_t rows = a.slice_rows[slice];
  const int32_t length = a.slice_length[slice];
  wait_for_previous();
  if (head >= a.num_kv_heads * a.group || !is_meant(a, slice) || row >= rows ||
      length <= a.split_step)
    return;
  combine_row<kHeadDim>(a, slice, row, head, length);
}

struct Launch {
  TileArguments arguments;
  const BatchLayout& layout;
  cudaStream_t stream;
};

template <class Element, int kHeadDim, int kRowWarps, int kStages>
void launch_tiles(const Launch& launch) {
  using Kernel = TileKernel<Element, kHeadDim, kRowWarps, kStages>;
  const TileArguments& a = launch.arguments;
  auto* kernel = attend_tiles<Element, kHeadDim, kRowWarps, kStages>;
  constexpr size_t kBytes = sizeof(typename Kernel::Shared);
  static const cudaError_t is_allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  check_cuda(is_allowed, "shared memory of attention");
  const int32_t row_tiles = (a.largest_rows * a.group + Kernel::kRows - 1) / Kernel::kRows;
  const int32_t num_parts = (a.max_splits + a.block_splits - 1) / a.block_splits;
  const dim3 grid(static_cast<unsigned>(num_parts),
                  static_cast<unsigned>(row_tiles * a.num_kv_heads),
                  static_cast<unsigned>(launch.layout.num_slices));
  launch_chained(kernel, {grid, kTileThreads, kBytes, launch.stream, launch.layout.num_rows}, a);
  if (a.max_splits == 1) return;
  constexpr int32_t kWarps = kTileThreads / 32;
  const dim3 rows(static_cast<unsigned>((a.num_kv_heads * a.group + kWarps - 1) / kWarps),
                  static_cast<unsigned>(a.largest_rows),
                  static_cast<unsigned>(launch.layout.num_slices));
  launch_chained(combine_splits<kHeadDim>,
                 {rows, kTileThreads, 0, launch.stream, launch.layout.num_rows}, a);
}

template <class Element, int kHeadDim>
void launch_head_dim(const Launch& launch) {
  const TileArguments& a = launch.arguments;
  if (a.largest_rows * a.group > 16) return launch_tiles<Element, kHeadDim, 4, 2>(launch);
  if (a.block_splits > 1) return launch_tiles<Element, kHeadDim, 1, 2>(launch);
  launch_tiles<Element, kHeadDim, 1, 3>(launch);
}

template <class Element>
void launch_element(const Launch& launch, int32_t head_dim) {
  if (head_dim == 32) return launch_head_dim<Element, 32>(launch);
  if (head_dim == 64) return launch_head_dim<Element, 64>(launch);
  if (head_dim == 96) return launch_head_dim<Element, 96>(launch);
  launch_head_dim<Element, 128>(launch);
}

// What the slices of a launch have in common.
struct Extent {
  int32_t num_slices = 0;
  int32_t rows = 0;
  int32_t length = 0;
};

Extent extent_of(const BatchLayout& layout, RowRange rows, Slices only) {
  Extent extent;
  for (const SequenceSlice& slice : layout.on_host) {
    if (!rows.contains(slice.num_rows) || (only == Slices::kGathered && slice.is_contiguous()))
      continue;
    ++extent.num_slices;
    extent.rows = std::max(extent.rows, slice.num_rows);
    extent.length = std::max({extent.length, layout.min_length, slice.length()});
  }
  return extent;
}

// With more rows there are enough blocks anyway.
void set_splits(const Extent& extent, TileArguments& a) {
  if (extent.rows > (a.only_gathered ? kLargestSplitGathered : kLargestSplitRows)) return;
  const Splitting splits = a.only_gathered               ? kGatheredSplits
                           : extent.rows * a.group <= 16 ? kDecodeSplits
                                                         : kSuffixSplits;
  a.split_step = splits.step;
  a.most_splits = splits.most;
  a.max_splits = std::min(splits.most, (extent.length + splits.step - 1) / splits.step);
  if (extent.rows * a.group > 16) return;
  const int32_t most_blocks = extent.num_slices * a.num_kv_heads * a.max_splits;
  while (2 * a.block_splits <= a.max_splits && most_blocks / (2 * a.block_splits) >= kEnoughBlocks)
    a.block_splits *= 2;
}

TileArguments arguments_of(TensorView qkv,
                           const AttentionOptions& options,
                           const BatchLayout& layout,
                           const KvLayerView& kv,
                           TensorView out) {
  TileArguments a;
  a.q = static_cast<const __nv_bfloat16*>(qkv.data);
  a.out = static_cast<__nv_bfloat16*>(out.data);
  a.q_stride = qkv.row_stride;
  a.out_stride = out.row_stride;
  a.k = kv.k;
  a.v = kv.v;
  a.k_scale = kv.k_scale;
  a.v_scale = kv.v_scale;
  a.blocks = layout.blocks;
  a.slice_row = layout.slice_row;
  a.slice_rows = layout.slice_rows;
  a.slice_length = layout.slice_length;
  a.row_position = layout.row_position;
  a.max_blocks = layout.max_blocks;
  a.num_kv_heads = kv.num_kv_heads;
  a.group = options.num_heads / kv.num_kv_heads;
  a.window = options.sliding_window;
  a.scale = static_cast<float>(options.scale * kLog2E);
  a.soft_cap = options.soft_cap / options.scale;
  a.sinks = options.sinks;
  return a;
}

}  // namespace

bool tiles_support(const TensorView& qkv, const KvLayerView& kv) {
  const bool is_wide =
      kv.head_dim == 32 || kv.head_dim == 64 || kv.head_dim == 96 || kv.head_dim == 128;
  return qkv.dtype == DType::kBF16 && is_wide && kv.dtype != DType::kF32 && qkv.row_stride % 8 == 0;
}

void TileAttention::run(TensorView qkv,
                        const AttentionOptions& options,
                        const BatchLayout& layout,
                        const KvLayerView& kv,
                        RowRange rows,
                        Slices only,
                        TensorView out) {
  check(tiles_support(qkv, kv) && out.dtype == DType::kBF16, "attention tiles know these types");
  check(options.scale > 0, "attention scale is positive");
  const Extent extent = extent_of(layout, rows, only);
  if (extent.num_slices == 0) return;
  TileArguments a = arguments_of(qkv, options, layout, kv, out);
  a.smallest_rows = rows.smallest;
  a.largest_rows = extent.rows;
  a.only_gathered = only == Slices::kGathered;
  set_splits(extent, a);
  const size_t parts = static_cast<size_t>(layout.num_slices) * static_cast<size_t>(extent.rows) *
                       static_cast<size_t>(options.num_heads) * static_cast<size_t>(a.max_splits);
  const size_t sum_bytes = parts * static_cast<size_t>(kv.head_dim) * sizeof(float);
  if (a.only_gathered && sum_bytes > kMostGatheredScratch) {
    a.split_step = 0;
    a.most_splits = 1;
    a.max_splits = 1;
    a.block_splits = 1;
  }
  int32_t* counters = nullptr;
  if (a.max_splits > 1) {
    std::byte* memory = scratch_.reserve(kStreamCounterBytes + sum_bytes + parts * sizeof(float2));
    counters = reinterpret_cast<int32_t*>(memory);
    memory += kStreamCounterBytes;
    a.sums = reinterpret_cast<float*>(memory);
    a.totals = reinterpret_cast<float2*>(memory + sum_bytes);
  }
  const int32_t num_splits = extent.num_slices * kv.num_kv_heads * a.max_splits;
  if (counters != nullptr && num_splits >= enough_splits() &&
      stream_supports(a, kv, layout.num_slices))
    return attend_as_stream({a, kv, layout.num_slices, layout.num_rows, counters, stream_});
  const Launch launch{a, layout, stream_};
  if (kv.dtype == DType::kI8) return launch_element<int8_t>(launch, kv.head_dim);
  if (kv.dtype == DType::kF16) return launch_element<__half>(launch, kv.head_dim);
  launch_element<__nv_bfloat16>(launch, kv.head_dim);
}

}  // namespace droidspeak::cuda
