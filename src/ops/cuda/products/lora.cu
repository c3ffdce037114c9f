#include <algorithm>

#include "device/cuda/cuda_check.h"
#include "ops/cuda/device_code/chain.cuh"
#include "ops/cuda/device_code/vector.cuh"
#include "ops/cuda/products/cuda_matrix.h"
#include "ops/cuda/products/lora.h"

namespace droidspeak::cuda {
namespace {

constexpr int64_t kMostRows = 32;  // with more, products of whole ranges are faster
constexpr int kMostRanges = 32;    // in one launch: they travel as arguments
constexpr int kMostRanks = 1024;   // of all parts together
constexpr int kVector = 8;         // bf16 in one access
constexpr int kDotThreads = 128;   // of one dot product
constexpr int kDots = 2;           // in a block
constexpr int kAhead = 4;          // accesses before the input is there
constexpr int kUpThreads = 256;

struct LoraTask {
  const __nv_bfloat16* in;
  __nv_bfloat16* low;
  __nv_bfloat16* out;
  int64_t in_stride;
  int64_t low_stride;
  int64_t out_stride;
  int32_t in_columns;
  int32_t first_row;    // of the launch
  LoraTableView table;  // instead of the ranges, unless it is empty
  int32_t num_ranges;
  LoraRange ranges[kMostRanges];
};

static_assert(sizeof(LoraTask) <= 4096, "arguments of a kernel");

// No kernel of a chain writes a table.
__device__ const LoraRange* find_range(const LoraTask& task, int row) {
  if (task.table.row_range != nullptr) {
    const int32_t place = task.table.row_range[row];
    return place < 0 ? nullptr : task.table.ranges + place;
  }
  for (int i = 0; i < task.num_ranges; ++i) {
    if (row >= task.ranges[i].begin && row < task.ranges[i].end) return &task.ranges[i];
  }
  return nullptr;
}

__device__ float dot(uint4 a, uint4 b, float sum) {
  const auto* left = reinterpret_cast<const __nv_bfloat162*>(&a);
  const auto* right = reinterpret_cast<const __nv_bfloat162*>(&b);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 x = __bfloat1622float2(left[i]);
    const float2 y = __bfloat1622float2(right[i]);
    sum = fmaf(x.x, y.x, fmaf(x.y, y.y, sum));
  }
  return sum;
}

// grid: (ranks / kDots, rows from the task's first one on)
__global__ void __launch_bounds__(kDots* kDotThreads)
    lora_down_kernel(const __grid_constant__ LoraTask task) {
  __shared__ float parts[kDots * kDotThreads / 32];
  const int thread = static_cast<int>(threadIdx.x) % kDotThreads;
  const int rank =
      static_cast<int>(blockIdx.x) * kDots + static_cast<int>(threadIdx.x) / kDotThreads;
  const int row = task.first_row + static_cast<int>(blockIdx.y);
  const LoraRange* range = find_range(task, row);
  let_next_start();
  const bool has_rank = range != nullptr && rank < range->ranks;
  const int accesses = has_rank ? task.in_columns / kVector : 0;
  const auto* weights =
      has_rank ? reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(range->down) +
                                                static_cast<int64_t>(rank) * task.in_columns)
               : nullptr;
  uint4 ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const int at = thread + i * kDotThreads;
    if (at < accesses) ahead[i] = __ldg(weights + at);
  }
  wait_for_previous();
  const auto* in = reinterpret_cast<const uint4*>(task.in + row * task.in_stride);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const int at = thread + i * kDotThreads;
    if (at < accesses) sum = dot(ahead[i], in[at], sum);
  }
#pragma unroll 4
  for (int at = thread + kAhead * kDotThreads; at < accesses; at += kDotThreads)
    sum = dot(__ldg(weights + at), in[at], sum);
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (thread != 0 || !has_rank) return;
  const float* mine = parts + threadIdx.x / 32;
  float total = 0;
  for (int i = 0; i < kDotThreads / 32; ++i) total += mine[i];
  task.low[row * task.low_stride + rank] = __float2bfloat16_rn(total);
}

__device__ const LoraRange::Part* find_part(const LoraRange& range, int column) {
  for (int i = 0; i < range.num_parts; ++i) {
    const LoraRange::Part& part = range.parts[i];
    if (column >= part.first_column && column < part.first_column + part.columns) return &part;
  }
  return nullptr;
}

// grid: (columns / kUpThreads, rows from the task's first one on)
__global__ void __launch_bounds__(kUpThreads)
    lora_up_kernel(const __grid_constant__ LoraTask task) {
  __shared__ float low[kMostRanks];
  const int column = static_cast<int>(blockIdx.x * kUpThreads + threadIdx.x);
  const int row = task.first_row + static_cast<int>(blockIdx.y);
  const LoraRange* range = find_range(task, row);
  let_next_start();
  const LoraRange::Part* part = range == nullptr ? nullptr : find_part(*range, column);
  const bool is_packed = part != nullptr && part->rank % kVector == 0;
  const __nv_bfloat16* up =
      part == nullptr ? nullptr
                      : static_cast<const __nv_bfloat16*>(part->up) +
                            static_cast<int64_t>(column - part->first_column) * part->rank;
  const int accesses = is_packed ? part->rank / kVector : 0;
  uint4 ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (i < accesses) ahead[i] = __ldg(reinterpret_cast<const uint4*>(up) + i);
  }
  wait_for_previous();
  if (range == nullptr) return;
  for (int i = static_cast<int>(threadIdx.x); i < range->ranks; i += kUpThreads)
    low[i] = to_float(task.low[row * task.low_stride + i]);
  __syncthreads();
  if (part == nullptr) return;
  const float* mine = low + part->first_rank;
  float sum = 0;
  auto add = [&](uint4 bits, const float* values) {
    const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&bits);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 both = __bfloat1622float2(pairs[i]);
      sum = fmaf(both.x, values[2 * i], fmaf(both.y, values[2 * i + 1], sum));
    }
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (i < accesses) add(ahead[i], mine + i * kVector);
  }
  for (int i = kAhead; i < accesses; ++i)
    add(__ldg(reinterpret_cast<const uint4*>(up) + i), mine + i * kVector);
  for (int i = accesses * kVector; i < part->rank; ++i) sum = fmaf(to_float(up[i]), mine[i], sum);
  __nv_bfloat16& to = task.out[row * task.out_stride + column];
  to = __float2bfloat16_rn(to_float(to) + sum);
}

const void* values_of(const WeightMatrix& matrix) {
  return as_cuda(matrix).view().data;
}

bool is_bf16(const WeightMatrix& matrix) {
  return as_cuda(matrix).is_plain() && as_cuda(matrix).view().dtype == DType::kBF16;
}

struct LoraExtent {
  int64_t rows;
  int64_t ranks;
  int64_t out_columns;
};

void launch(cudaStream_t stream, const LoraTask& task, const LoraExtent& extent) {
  const auto rows = static_cast<unsigned>(extent.rows);
  const dim3 down(static_cast<unsigned>(divide_up(extent.ranks, kDots)), rows);
  const dim3 up(static_cast<unsigned>(divide_up(extent.out_columns, kUpThreads)), rows);
  launch_chained(lora_down_kernel, {down, dim3(kDots * kDotThreads), 0, stream, rows}, task);
  launch_chained(lora_up_kernel, {up, dim3(kUpThreads), 0, stream, rows}, task);
}

// As many rows as lie between the first and the last of the task's ranges.
void launch_ranges(cudaStream_t stream, LoraTask& task, int64_t out_columns) {
  int32_t ranks = 0;
  for (int i = 0; i < task.num_ranges; ++i) ranks = std::max(ranks, task.ranges[i].ranks);
  task.first_row = task.ranges[0].begin;
  launch(stream, task, {task.ranges[task.num_ranges - 1].end - task.first_row, ranks, out_columns});
}

LoraTask task_of(TensorView in, TensorView low, TensorView out) {
  return {.in = static_cast<const __nv_bfloat16*>(in.data),
          .low = static_cast<__nv_bfloat16*>(low.data),
          .out = static_cast<__nv_bfloat16*>(out.data),
          .in_stride = in.row_stride,
          .low_stride = low.row_stride,
          .out_stride = out.row_stride,
          .in_columns = static_cast<int32_t>(in.columns),
          .first_row = 0,
          .table = {},
          .num_ranges = 0,
          .ranges = {}};
}

bool is_supported(const LoraLinear& lora) {
  return is_bf16(*lora.down) && lora.down->rows() <= kMostRanks &&
         std::ssize(lora.parts) <= LoraRange::kMostParts &&
         std::ranges::all_of(lora.parts, [](const auto& part) { return is_bf16(*part.up); });
}

}  // namespace

LoraRange range_of(const LoraRows& rows) {
  LoraRange range{.begin = static_cast<int32_t>(rows.begin),
                  .end = static_cast<int32_t>(rows.end),
                  .down = values_of(*rows.lora->down),
                  .ranks = static_cast<int32_t>(rows.lora->down->rows()),
                  .num_parts = static_cast<int32_t>(rows.lora->parts.size()),
                  .parts = {}};
  for (size_t i = 0; i < rows.lora->parts.size(); ++i) {
    const LoraLinear::Part& part = rows.lora->parts[i];
    range.parts[i] = {.up = values_of(*part.up),
                      .first_rank = part.first_rank,
                      .rank = part.rank,
                      .first_column = part.first_column,
                      .columns = static_cast<int32_t>(part.up->rows())};
  }
  return range;
}

bool lora_kernels_support(std::span<const LoraRows> ranges,
                          TensorView in,
                          TensorView low,
                          TensorView out) {
  const bool are_bf16 =
      in.dtype == DType::kBF16 && low.dtype == DType::kBF16 && out.dtype == DType::kBF16;
  return are_bf16 && in.rows <= kMostRows && is_packed(in, kVector) &&
         std::ranges::is_sorted(ranges, {}, &LoraRows::begin) &&
         std::ranges::all_of(ranges, [](const LoraRows& rows) { return is_supported(*rows.lora); });
}

void add_lora_of_few_rows(cudaStream_t stream,
                          std::span<const LoraRows> ranges,
                          TensorView in,
                          TensorView low,
                          TensorView out) {
  LoraTask task = task_of(in, low, out);
  for (const LoraRows& rows : ranges) {
    if (rows.begin == rows.end) continue;
    task.ranges[task.num_ranges++] = range_of(rows);
    if (task.num_ranges < kMostRanges) continue;
    launch_ranges(stream, task, out.columns);
    task.num_ranges = 0;
  }
  if (task.num_ranges > 0) launch_ranges(stream, task, out.columns);
}

void add_lora_of_table(cudaStream_t stream,
                       const LoraTableView& table,
                       TensorView in,
                       TensorView low,
                       TensorView out) {
  LoraTask task = task_of(in, low, out);
  task.table = table;
  launch(stream, task, {in.rows, low.columns, out.columns});
}

}  // namespace droidspeak::cuda
