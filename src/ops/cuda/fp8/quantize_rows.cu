#include <algorithm>

#include "device/cuda/cuda_check.h"
#include "ops/cuda/device_code/chain.cuh"
#include "ops/cuda/device_code/fp8.cuh"
#include "ops/cuda/fp8/quantize_rows.h"
#include "ops/cuda/rows/activation.cuh"

namespace droidspeak::cuda {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kKept = 4;  // accesses of a thread that stay in registers

struct QuantizeTask {
  const __nv_bfloat16* in;
  uint8_t* codes;
  float* scales;
  int64_t in_stride;
  int columns;
};

// The largest magnitude over the block, to every thread; what is no number stays.
__device__ float block_largest(float value) {
  __shared__ float parts[32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  value = largest_of_warp(value);
  if (lane == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  return largest_of_warp(lane < static_cast<int>(blockDim.x) / 32 ? parts[lane] : 0.0f);
}

template <int kSize>
__device__ float largest_of(const Pack<__nv_bfloat16, kSize>& x) {
  float largest = 0;
  for (int e = 0; e < kSize; ++e) largest = larger(largest, to_float(x.values[e]));
  return largest;
}

template <int kSize>
__device__ void store_codes(const Pack<__nv_bfloat16, kSize>& x,
                            const Fp8Scale& scale,
                            uint8_t* codes) {
  Pack<uint8_t, kSize> out;
  for (int e = 0; e < kSize; ++e) out.values[e] = scale.code_of(to_float(x.values[e]));
  store_pack<kSize>(codes, out);
}

// One block per row. A thread keeps its first elements, usually its only ones; the second reading
// of others comes from the cache.
template <int kSize>
__global__ void __launch_bounds__(kMaxThreads) quantize_rows_kernel(QuantizeTask task) {
  const __nv_bfloat16* in = task.in + blockIdx.x * task.in_stride;
  uint8_t* codes = task.codes + static_cast<int64_t>(blockIdx.x) * task.columns;
  const int step = static_cast<int>(blockDim.x) * kSize;
  const int first = static_cast<int>(threadIdx.x) * kSize;
  const int rest = first + kKept * step;
  let_next_start();
  wait_for_previous();
  Pack<__nv_bfloat16, kSize> kept[kKept] = {};
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    if (first + k * step < task.columns) kept[k] = load_pack<kSize>(in + first + k * step);
  }
  float largest = 0;
#pragma unroll
  for (int k = 0; k < kKept; ++k) largest = larger(largest, largest_of(kept[k]));
  for (int i = rest; i < task.columns; i += step)
    largest = larger(largest, largest_of(load_pack<kSize>(in + i)));
  const Fp8Scale scale(block_largest(largest));
  if (threadIdx.x == 0) task.scales[blockIdx.x] = scale.factor;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int i = first + k * step;
    if (i < task.columns) store_codes(kept[k], scale, codes + i);
  }
  for (int i = rest; i < task.columns; i += step)
    store_codes(load_pack<kSize>(in + i), scale, codes + i);
}

constexpr int kVector = kPackElements<__nv_bfloat16>;
using Vector = Pack<__nv_bfloat16, kVector>;

// Rows that are written as they are and rounded.
struct WriteTask {
  const __nv_bfloat16* in;
  __nv_bfloat16* out;
  RoundedPlace place;
  int64_t in_stride;
  int64_t out_stride;
  int columns;
};

// As rms_norm() of many rows does it, to the bit.
struct Norm {
  const float* weight;
  float epsilon;

  __device__ void apply(const WriteTask& task, int first, int step, Vector (&kept)[kKept]) const {
    float squares = 0;
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      float sum = 0;
      for (int e = 0; e < kVector; ++e)
        sum += to_float(kept[k].values[e]) * to_float(kept[k].values[e]);
      squares += sum;
    }
    const float mean = block_sum(squares) / static_cast<float>(task.columns);
    const float factor = 1.0f / sqrtf(mean + epsilon);
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      if (first + k * step >= task.columns) continue;
      const auto weights = load_pack<kVector>(weight + first + k * step);
      for (int e = 0; e < kVector; ++e)
        kept[k].values[e] =
            from_float<__nv_bfloat16>(to_float(kept[k].values[e]) * factor * weights.values[e]);
    }
  }
};

template <Activation kActivation>
struct Gate {
  __device__ void apply(const WriteTask& task, int first, int step, Vector (&kept)[kKept]) const {
    const __nv_bfloat16* up = task.in + blockIdx.x * task.in_stride + task.columns;
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      if (first + k * step >= task.columns) continue;
      const auto other = load_pack<kVector>(up + first + k * step);
      for (int e = 0; e < kVector; ++e)
        kept[k].values[e] = from_float<__nv_bfloat16>(gated<__nv_bfloat16, kActivation>(
            to_float(kept[k].values[e]), to_float(other.values[e])));
    }
  }
};

// One block per row, whose threads keep all of it.
template <class Change>
__global__ void __launch_bounds__(kMaxThreads)
    write_and_quantize_kernel(WriteTask task, Change change) {
  const __nv_bfloat16* in = task.in + blockIdx.x * task.in_stride;
  __nv_bfloat16* out = task.out + blockIdx.x * task.out_stride;
  uint8_t* codes = task.place.codes + static_cast<int64_t>(blockIdx.x) * task.columns;
  const int step = static_cast<int>(blockDim.x) * kVector;
  const int first = static_cast<int>(threadIdx.x) * kVector;
  Vector kept[kKept] = {};
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    if (first + k * step < task.columns) kept[k] = load_pack<kVector>(in + first + k * step);
  }
  change.apply(task, first, step, kept);
  float largest = 0;
#pragma unroll
  for (int k = 0; k < kKept; ++k) largest = larger(largest, largest_of(kept[k]));
  const Fp8Scale scale(block_largest(largest));
  if (threadIdx.x == 0) task.place.scales[blockIdx.x] = scale.factor;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int i = first + k * step;
    if (i >= task.columns) continue;
    store_pack<kVector>(out + i, kept[k]);
    store_codes(kept[k], scale, codes + i);
  }
}

template <class Change>
void launch_writing(cudaStream_t stream,
                    TensorView in,
                    TensorView out,
                    const RoundedPlace& place,
                    const Change& change) {
  const WriteTask task{.in = static_cast<const __nv_bfloat16*>(in.data),
                       .out = static_cast<__nv_bfloat16*>(out.data),
                       .place = place,
                       .in_stride = in.row_stride,
                       .out_stride = out.row_stride,
                       .columns = static_cast<int>(out.columns)};
  const int threads = 32 * divide_up(task.columns, 32 * kVector * kKept);
  write_and_quantize_kernel<<<static_cast<unsigned>(out.rows), static_cast<unsigned>(threads), 0,
                              stream>>>(task, change);
  check_launch("write rows and round them");
}

template <int kSize>
void launch(cudaStream_t stream, const QuantizeTask& task, int64_t rows) {
  const int wanted = 32 * divide_up(task.columns, 32 * kSize * kKept);
  launch_chained(quantize_rows_kernel<kSize>,
                 {dim3(static_cast<unsigned>(rows)),
                  dim3(static_cast<unsigned>(std::min(wanted, kMaxThreads))), 0, stream, rows},
                 task);
}

}  // namespace

void quantize_rows(cudaStream_t stream, TensorView in, const RoundedPlace& place) {
  const QuantizeTask task{.in = static_cast<const __nv_bfloat16*>(in.data),
                          .codes = place.codes,
                          .scales = place.scales,
                          .in_stride = in.row_stride,
                          .columns = static_cast<int>(in.columns)};
  constexpr int size = kPackElements<__nv_bfloat16>;
  if (is_packed(in, size)) return launch<size>(stream, task, in.rows);
  launch<1>(stream, task, in.rows);
}

bool can_round_while_writing(TensorView in, TensorView out) {
  return in.dtype == DType::kBF16 && out.dtype == DType::kBF16 && is_packed(in, kVector) &&
         is_packed(out, kVector) && out.columns <= kMaxThreads * kVector * kKept;
}

void norm_and_quantize(cudaStream_t stream,
                       TensorView in,
                       const float* weight,
                       float epsilon,
                       TensorView out,
                       const RoundedPlace& place) {
  launch_writing(stream, in, out, place, Norm{weight, epsilon});
}

void activate_and_quantize(cudaStream_t stream,
                           TensorView in,
                           Activation activation,
                           TensorView out,
                           const RoundedPlace& place) {
  switch (activation) {
    case Activation::kSilu:
      return launch_writing(stream, in, out, place, Gate<Activation::kSilu>{});
    case Activation::kGelu:
      return launch_writing(stream, in, out, place, Gate<Activation::kGelu>{});
    case Activation::kClampedSwish:
      return launch_writing(stream, in, out, place, Gate<Activation::kClampedSwish>{});
  }
}

}  // namespace droidspeak::cuda
