#include "base/check.h"
#include "ops/cuda/attention/attention_gathered.h"
#include "ops/cuda/attention/attention_gathered_kernel.cuh"
#include "ops/cuda/attention/cache_panels.h"
#include "ops/cuda/device_code/runs_here.h"

namespace droidspeak::cuda {
namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr size_t kTileBytes = size_t{160} << 10;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
static_assert(sizeof(GatheredTiles) == kTileBytes);
#endif

// How many blocks share the work; 0: the device or the build has not got what it takes.
int32_t count_blocks() {
  cudaFuncAttributes attributes{};
  check_cuda(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(attend_gathered)),
             "read the attributes of a kernel");
  if (attributes.sharedSizeBytes == 0 || !has_panels()) return 0;
  const auto room =
      static_cast<size_t>(attribute_of_device(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  if (attributes.sharedSizeBytes + kTileBytes > room) return 0;
  check_cuda(cudaFuncSetAttribute(attend_gathered, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(kTileBytes)),
             "give attention its shared memory");
  return attribute_of_device(cudaDevAttrMultiProcessorCount);
}

}  // namespace

GatheredAttention::GatheredAttention(cudaStream_t stream)
    : stream_(stream), scratch_(stream), num_blocks_(count_blocks()) {}

bool GatheredAttention::supports(const TensorView& qkv,
                                 const AttentionOptions& options,
                                 const BatchLayout& layout,
                                 const KvLayerView& kv) const {
  const bool has_window = options.sliding_window > 0 && options.sliding_window < layout.max_length;
  const int64_t packed = int64_t{layout.max_rows} * options.num_heads / kv.num_kv_heads;
  return num_blocks_ > 0 && !has_window && options.soft_cap == 0 && options.sinks == nullptr &&
         qkv.dtype == DType::kBF16 && kv.dtype == DType::kBF16 && kv.head_dim == kGatheredDim &&
         qkv.row_stride % 8 == 0 && packed <= int64_t{kMostGatheredTiles} * kGatheredRows;
}

void GatheredAttention::run(TensorView qkv,
                            const AttentionOptions& options,
                            const BatchLayout& layout,
                            int32_t slice,
                            const KvLayerView& kv,
                            TensorView out) {
  check(out.dtype == DType::kBF16 && options.scale > 0, "attention has this form");
  const SequenceSlice& rows = layout.on_host[static_cast<size_t>(slice)];
  const size_t slots = 2 * static_cast<size_t>(num_blocks_) * kGatheredRows;
  std::byte* memory = scratch_.reserve(slots * (kGatheredDim * sizeof(float) + sizeof(float2)));
  const auto* q = static_cast<const __nv_bfloat16*>(qkv.data);
  auto* target = static_cast<__nv_bfloat16*>(out.data);
  const GatheredTask task{
      .k = panels_of(kv.k, kv.dtype, kv.head_dim),
      .v = panels_of(kv.v, kv.dtype, kv.head_dim),
      .q = q + rows.first_row * qkv.row_stride,
      .out = target + rows.first_row * out.row_stride,
      .q_stride = qkv.row_stride,
      .out_stride = out.row_stride,
      .blocks = layout.blocks + static_cast<int64_t>(slice) * layout.max_blocks,
      .row_position = layout.row_position + rows.first_row,
      .num_rows = rows.num_rows,
      .length = rows.length(),
      .num_kv_heads = kv.num_kv_heads,
      .group = options.num_heads / kv.num_kv_heads,
      .num_parts = num_blocks_,
      .scale = static_cast<float>(options.scale * kLog2E),
      .sums = reinterpret_cast<float*>(memory),
      .totals = reinterpret_cast<float2*>(memory + slots * kGatheredDim * sizeof(float))};
  launch_chained(attend_gathered,
                 {static_cast<unsigned>(num_blocks_), kGatheredThreads, kTileBytes, stream_}, task);
  const int32_t tiles = (task.num_rows * task.group + kGatheredRows - 1) / kGatheredRows;
  launch_chained(combine_gathered,
                 {dim3(static_cast<unsigned>(tiles * task.num_kv_heads), 4), 256, 0, stream_},
                 task);
}

}  // namespace droidspeak::cuda
