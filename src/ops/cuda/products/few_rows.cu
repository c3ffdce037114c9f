#include "device/cuda/cuda_check.h"
#include "ops/cuda/device_code/runs_here.h"
#include "ops/cuda/products/few_rows_kernel.cuh"
#include "ops/cuda/quantized/strip_product.h"

namespace droidspeak::cuda {
namespace {

constexpr int kMostSharedBytes = 200 << 10;  // what four normed rows of so many take

template <class Weight, int kRows>
__global__ void __launch_bounds__(kThreads)
    multiply_few_rows_kernel(const __grid_constant__ ProductTask task) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char memory[];
  let_next_start();
  multiply_rows<Weight, kRows>(task, memory, [] { wait_for_previous(); });
#endif
}

bool is_aligned(const float* weight) {
  return reinterpret_cast<uintptr_t>(weight) % sizeof(Pack<float, kVector>) == 0;
}

void fill_weights(const CudaMatrix& weights, ProductTask& task) {
  if (!weights.is_fp8()) {
    task.weights = weights.view().data;
    return;
  }
  const Fp8Rows rows = weights.fp8();
  task.weights = rows.codes;
  task.scales = rows.scales;
}

ProductTask task_of(const FewRowsProduct& product) {
  ProductTask task{};
  fill_weights(product.weights, task);
  task.in = static_cast<const __nv_bfloat16*>(product.in.data);
  task.in_stride = product.in.row_stride;
  task.rows = static_cast<int>(product.in.rows);
  task.outputs = static_cast<int>(product.weights.rows());
  task.columns = static_cast<int>(product.weights.columns());
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
    task.activation = product.gate->known_activation();
  }
  return task;
}

template <class Weight, int kRows>
void launch(cudaStream_t stream, const ProductTask& task) {
  static const int num_multiprocessors = attribute_of_device(cudaDevAttrMultiProcessorCount);
  static const cudaError_t is_allowed =
      cudaFuncSetAttribute(multiply_few_rows_kernel<Weight, kRows>,
                           cudaFuncAttributeMaxDynamicSharedMemorySize, kMostSharedBytes);
  check_cuda(is_allowed, "use shared memory for products");
  launch_chained(multiply_few_rows_kernel<Weight, kRows>,
                 {.grid = dim3(static_cast<unsigned>(num_multiprocessors)),
                  .block = kThreads,
                  .shared_bytes = InputReader::bytes(task, kRows),
                  .stream = stream,
                  .rows = kRows},
                 task);
}

template <class Weight>
void launch_rows(cudaStream_t stream, const ProductTask& task) {
  if (task.rows == 1) return launch<Weight, 1>(stream, task);
  if (task.rows == 2) return launch<Weight, 2>(stream, task);
  launch<Weight, 4>(stream, task);
}

// Rows of whole accesses, of a type that there is a kernel for.
bool has_whole_accesses(const CudaMatrix& weights) {
  if (weights.is_fp8()) return weights.columns() % WeightAccess<uint8_t>::kElements == 0;
  return weights.view().dtype == DType::kBF16 && is_packed(weights.view(), kVector);
}

}  // namespace

bool few_rows_support(const CudaMatrix& weights, TensorView in, TensorView out) {
  if (weights.is_strips()) return strip_products_support(weights, in, out);
  static const bool has_kernel =
      runs_here(multiply_few_rows_kernel<__nv_bfloat16, kMostFewRows>, kMostSharedBytes);
  if (!has_kernel || in.rows < 1 || in.rows > kMostFewRows || weights.rows() < 1) return false;
  return in.dtype == DType::kBF16 && is_packed(in, kVector) && has_whole_accesses(weights) &&
         weights.columns() <= kMostColumnsOfFewRows &&
         (out.dtype == DType::kBF16 || out.dtype == DType::kF32);
}

bool few_rows_can_norm(TensorView in, const float* weight, TensorView out) {
  return in.dtype == DType::kBF16 && in.rows <= kMostFewRows &&
         in.columns <= kMostColumnsOfFewRows && out.dtype == DType::kBF16 &&
         is_packed(in, kVector) && is_packed(out, kVector) && is_aligned(weight);
}

void multiply_few_rows(cudaStream_t stream, const FewRowsProduct& product) {
  if (product.weights.is_strips()) return multiply_strips(stream, product);
  const ProductTask task = task_of(product);
  if (product.weights.is_fp8()) return launch_rows<uint8_t>(stream, task);
  launch_rows<__nv_bfloat16>(stream, task);
}

}  // namespace droidspeak::cuda
