#include <algorithm>

#include "device/cuda/cuda_check.h"
#include "ops/cuda/bulk_copy.cuh"
#include "ops/cuda/chain.cuh"
#include "ops/cuda/few_rows.h"
#include "ops/cuda/vector.cuh"

namespace droidspeak::cuda {
namespace {

constexpr int kWarps = 8;  // that multiply; one more copies
constexpr int kThreads = 32 * (kWarps + 1);
constexpr int kMostStages = 8;
constexpr int kBatchOutputs = 64;  // summed up over the warps together
// Leaves room on the multiprocessor for the kernel before and the next product.
constexpr int kRingBytes = 96 << 10;
constexpr int kStageBytes = 16 << 10;
constexpr int kVector = 8;            // bf16 in one access
constexpr int kMostKeptVectors = 16;  // vectors of input that a lane holds as floats

// How the warps share the work: a matrix row is cut into `row_warps` interleaved parts of
// `vectors` accesses a lane, and kWarps / row_warps matrix rows are worked on at a time.
struct Division {
  int row_warps;
  int vectors;
};

// vectors 0: the row is too long.
Division divide(int64_t rows, int64_t columns) {
  const int64_t accesses = columns / kVector;
  const int most = std::min(8, static_cast<int>(kMostKeptVectors / rows));
  const int wanted = rows == 1 ? 4 : 2;
  int row_warps = 1;
  auto vectors = [&] { return divide_up(accesses, 32 * row_warps); };
  while (row_warps < kWarps && vectors() > wanted) row_warps *= 2;
  return {row_warps, vectors() <= most ? vectors() : 0};
}

struct StreamTask {
  const __nv_bfloat16* weights;  // [outputs, columns]
  const __nv_bfloat16* in;
  void* out;
  const float* bias;
  int64_t in_stride;
  int64_t out_stride;
  int outputs;
  int columns;
  int row_warps;
  int stage_outputs;  // matrix rows in one stage
  int num_stages;
  DType out_dtype;
  Accumulate accumulate;
};

// The outputs that one block computes.
struct Share {
  int begin;
  int end;

  __device__ explicit Share(const StreamTask& task) {
    const auto outputs = static_cast<int64_t>(task.outputs);
    begin = static_cast<int>(outputs * blockIdx.x / gridDim.x);
    end = static_cast<int>(outputs * (blockIdx.x + 1) / gridDim.x);
  }

  __device__ int num_loads(const StreamTask& task) const {
    return (end - begin + task.stage_outputs - 1) / task.stage_outputs;
  }

  // Matrix rows in load number `load`.
  __device__ int outputs_of(const StreamTask& task, int load) const {
    return min(task.stage_outputs, end - begin - load * task.stage_outputs);
  }
};

struct Ring {
  uint64_t* full;  // one for each stage
  uint64_t* empty;
  unsigned char* data;
  size_t stage_bytes;

  __device__ unsigned char* stage(int index) const { return data + index * stage_bytes; }
};

// One thread sends for the whole share, as far ahead as there is room.
__device__ void load_share(const StreamTask& task, const Share& share, const Ring& ring) {
  const uint64_t policy = evict_first_policy();
  const int num_loads = share.num_loads(task);
  for (int load = 0; load < num_loads; ++load) {
    const int stage = load % task.num_stages;
    const int round = load / task.num_stages;
    if (round > 0) {
      wait_barrier(&ring.empty[stage], static_cast<uint32_t>(round - 1) & 1);
      fence_before_copy();
    }
    const int64_t first = share.begin + load * task.stage_outputs;
    const auto bytes = static_cast<uint32_t>(share.outputs_of(task, load) * task.columns *
                                             static_cast<int>(sizeof(__nv_bfloat16)));
    arrive_expecting(&ring.full[stage], bytes);
    copy_bulk(ring.stage(stage), task.weights + first * task.columns, bytes, &ring.full[stage],
              policy);
  }
}

__device__ inline float2 floats_of(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

__device__ inline void widen(uint4 bits, float (&values)[kVector]) {
  const uint32_t pairs[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 both = floats_of(pairs[i]);
    values[2 * i] = both.x;
    values[2 * i + 1] = both.y;
  }
}

// Waits for the warps that multiply; the copying one has left.
__device__ inline void sync_warps() {
  asm volatile("bar.sync 1, %0;" ::"n"(32 * kWarps) : "memory");
}

template <int kRows, int kVectors>
class Multiplier {
 public:
  // Sums of parts of rows, two batches in turn.
  using Parts = float[2][kBatchOutputs][kWarps][kRows];

  __device__ Multiplier(const StreamTask& task, Parts& parts) : task_(task), parts_(parts) {
    lane_ = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    part_ = warp % task.row_warps;
    line_ = warp / task.row_warps;
    lines_ = kWarps / task.row_warps;
  }

  __device__ void load_input() {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        uint4 bits{0, 0, 0, 0};
        if (is_inside(i))
          bits = *reinterpret_cast<const uint4*>(task_.in + row * task_.in_stride + column(i));
        widen(bits, in_[row][i]);
      }
    }
  }

  // Matrix rows of one stage; `first` is the place of the first one in the batch.
  __device__ void multiply(const unsigned char* stage, int outputs, int first, int batch) {
    const auto* weights = reinterpret_cast<const __nv_bfloat16*>(stage);
    for (int output = line_; output < outputs; output += lines_) {
      float2 sums[kRows] = {};
      add_products(weights + output * task_.columns, sums);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const float sum = warp_sum(sums[row].x + sums[row].y);
        if (lane_ == 0) parts_[batch % 2][first + output][part_][row] = sum;
      }
    }
  }

  // All warps have multiplied the batch's `outputs` matrix rows from `first_output` on.
  __device__ void store(int first_output, int outputs, int batch) const {
    sync_warps();
    for (int i = static_cast<int>(threadIdx.x); i < outputs * kRows; i += 32 * kWarps) {
      const int place = i % outputs;
      const int row = i / outputs;
      float sum = 0;
      for (int part = 0; part < task_.row_warps; ++part) sum += parts_[batch % 2][place][part][row];
      const int output = first_output + place;
      if (task_.bias != nullptr) sum += task_.bias[output];
      const int64_t at = row * task_.out_stride + output;
      if (task_.out_dtype == DType::kF32) {
        put(static_cast<float*>(task_.out) + at, sum);
      } else {
        put(static_cast<__nv_bfloat16*>(task_.out) + at, sum);
      }
    }
  }

 private:
  __device__ int column(int vector) const {
    return ((vector * task_.row_warps + part_) * 32 + lane_) * kVector;
  }

  __device__ bool is_inside(int vector) const {
    return column(vector) < task_.columns;
  }

  __device__ void add_products(const __nv_bfloat16* weights, float2 (&sums)[kRows]) const {
    uint4 bits[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      bits[i] = uint4{0, 0, 0, 0};
      if (is_inside(i)) bits[i] = *reinterpret_cast<const uint4*>(weights + column(i));
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float values[kVector];
      widen(bits[i], values);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
#pragma unroll
        for (int e = 0; e < kVector; e += 2) {
          sums[row].x = fmaf(values[e], in_[row][i][e], sums[row].x);
          sums[row].y = fmaf(values[e + 1], in_[row][i][e + 1], sums[row].y);
        }
      }
    }
  }

  template <class Out>
  __device__ void put(Out* to, float sum) const {
    if (task_.accumulate == Accumulate::kAdd) sum += to_float(*to);
    *to = from_float<Out>(sum);
  }

  const StreamTask& task_;
  Parts& parts_;
  int lane_;
  int part_;  // of a matrix row
  int line_;  // which of the matrix rows that are worked on at a time
  int lines_;
  float in_[kRows][kVectors][kVector];
};

// grid: as many blocks as multiprocessors.
template <int kRows, int kVectors>
__global__ void __launch_bounds__(kThreads)
    stream_matrix_kernel(const __grid_constant__ StreamTask task) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ uint64_t full[kMostStages];
  __shared__ uint64_t empty[kMostStages];
  __shared__ typename Multiplier<kRows, kVectors>::Parts parts;
  const Share share(task);
  const Ring ring{full, empty, memory,
                  static_cast<size_t>(task.stage_outputs) * task.columns * sizeof(__nv_bfloat16)};
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < task.num_stages; ++stage) {
      init_barrier(&full[stage], 1);
      init_barrier(&empty[stage], kWarps);
    }
    publish_barriers();
  }
  __syncthreads();
  let_next_start();
  if (warp == kWarps) {
    if (threadIdx.x % 32 == 0) load_share(task, share, ring);
    return;
  }
  Multiplier<kRows, kVectors> multiplier(task, parts);
  wait_for_previous();
  multiplier.load_input();
  const int batch_loads = kBatchOutputs / task.stage_outputs;
  const int num_loads = share.num_loads(task);
  for (int first = 0, batch = 0; first < num_loads; first += batch_loads, ++batch) {
    const int last = min(first + batch_loads, num_loads);
    int outputs = 0;
    for (int load = first; load < last; ++load) {
      const int stage = load % task.num_stages;
      wait_barrier(&full[stage], static_cast<uint32_t>(load / task.num_stages) & 1);
      multiplier.multiply(ring.stage(stage), share.outputs_of(task, load), outputs, batch);
      outputs += share.outputs_of(task, load);
      __syncwarp();
      if (threadIdx.x % 32 == 0) arrive(&empty[stage]);
    }
    multiplier.store(share.begin + first * task.stage_outputs, outputs, batch);
  }
#endif
}

struct Launch {
  StreamTask task;
  unsigned blocks;
  cudaStream_t stream;
};

// The carve-out makes room for the ring of the next product beside this one.
template <class Kernel>
cudaError_t allow_ring(Kernel* kernel) {
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kRingBytes);
  if (status != cudaSuccess) return status;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared);
}

template <int kRows, int kVectors>
void launch_kernel(const Launch& launch) {
  auto* kernel = stream_matrix_kernel<kRows, kVectors>;
  static const cudaError_t is_allowed = allow_ring(kernel);
  check_cuda(is_allowed, "use shared memory for products");
  const StreamTask& task = launch.task;
  const size_t shared = static_cast<size_t>(task.num_stages) *
                        static_cast<size_t>(task.stage_outputs) *
                        static_cast<size_t>(task.columns) * sizeof(__nv_bfloat16);
  launch_chained(kernel, {dim3(launch.blocks), dim3(kThreads), shared, launch.stream}, task);
}

template <int kRows, int kVectors = 1>
void launch_rows(const Launch& launch, int vectors) {
  if (vectors == kVectors) return launch_kernel<kRows, kVectors>(launch);
  if constexpr (kVectors < 8 && kVectors * kRows < kMostKeptVectors / kRows * kRows)
    launch_rows<kRows, kVectors + 1>(launch, vectors);
}

int attribute_of_device(cudaDeviceAttr attribute) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, attribute, 0), "read an attribute of the device");
  return value;
}

}  // namespace

bool few_rows_support(const CudaMatrix& weights, TensorView in, TensorView out) {
  static const bool has_bulk_copies = attribute_of_device(cudaDevAttrComputeCapabilityMajor) >= 9;
  const TensorView matrix = weights.view();
  if (!has_bulk_copies || in.rows < 1 || in.rows > kMostFewRows) return false;
  if (matrix.dtype != DType::kBF16 || in.dtype != DType::kBF16) return false;
  const Division division = divide(in.rows, in.columns);
  const auto line_bytes = static_cast<int64_t>(bytes_of(DType::kBF16, matrix.columns));
  return division.vectors > 0 && is_packed(in, kVector) && is_packed(matrix, kVector) &&
         matrix.rows > 0 && line_bytes <= kRingBytes / 2 &&
         (out.dtype == DType::kBF16 || out.dtype == DType::kF32);
}

void multiply_few_rows(cudaStream_t stream,
                       const CudaMatrix& weights,
                       TensorView in,
                       TensorView out,
                       Accumulate accumulate,
                       const float* bias) {
  static const int num_multiprocessors = attribute_of_device(cudaDevAttrMultiProcessorCount);
  const TensorView matrix = weights.view();
  const Division division = divide(in.rows, in.columns);
  const auto line_bytes = static_cast<int>(bytes_of(DType::kBF16, matrix.columns));
  const int lines = kWarps / division.row_warps;
  const int fitting = std::max(1, kStageBytes / line_bytes / lines * lines);
  const int stage_outputs = std::min(fitting, kBatchOutputs);
  const StreamTask task{
      .weights = static_cast<const __nv_bfloat16*>(matrix.data),
      .in = static_cast<const __nv_bfloat16*>(in.data),
      .out = out.data,
      .bias = bias,
      .in_stride = in.row_stride,
      .out_stride = out.row_stride,
      .outputs = static_cast<int>(matrix.rows),
      .columns = static_cast<int>(matrix.columns),
      .row_warps = division.row_warps,
      .stage_outputs = stage_outputs,
      .num_stages = std::min(kMostStages, kRingBytes / (stage_outputs * line_bytes)),
      .out_dtype = out.dtype,
      .accumulate = accumulate};
  const Launch launch{
      task, static_cast<unsigned>(std::min<int64_t>(num_multiprocessors, matrix.rows)), stream};
  switch (in.rows) {
    case 1:
      return launch_rows<1>(launch, division.vectors);
    default:
      return launch_rows<2>(launch, division.vectors);
  }
}

}  // namespace droidspeak::cuda
