#include <algorithm>
#include <limits>

#include "ops/cuda/device_code/runs_here.h"
#include "ops/cuda/experts/expert_product.h"
#include "ops/cuda/experts/item_of_block.cuh"
#include "ops/cuda/products/few_rows_kernel.cuh"

namespace droidspeak::cuda {
namespace {

// What so many rows of so many columns take.
constexpr int kMostSharedBytes =
    static_cast<int>(kMostFewRows * kMostColumnsOfFewRows * sizeof(__nv_bfloat16));

struct ExpertRowsTask {
  ProductTask each;  // what all items have in common
  ExpertItems items;
  ExpertProduct::In in_order;
  bool follows;
  const __nv_bfloat16* weights[kMostExperts];

  __device__ __forceinline__ ProductTask of(const ExpertItem& item) const {
    ProductTask task = each;
    task.weights = weights[item.expert];
    task.rows = item.num_rows;
    const auto place = static_cast<int64_t>(item.first_place);
    if (in_order == ExpertProduct::In::kPlaces) {
      task.in += place * each.in_stride;
    } else {
      task.in_rows = items.rows + place;
    }
    if (each.out != nullptr)
      task.out = static_cast<__nv_bfloat16*>(each.out) + place * each.out_stride;
    if (each.gated != nullptr) task.gated += place * each.gated_stride;
    return task;
  }
};

template <int kRows>
__global__ void __launch_bounds__(kThreads)
    multiply_expert_rows_kernel(const __grid_constant__ ExpertRowsTask group) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char memory[];
  ExpertItem item;
  if (!find_item(group.items, group.follows, item)) return;
  const ProductTask task = group.of(item);
  multiply_rows<__nv_bfloat16, kRows>(task, memory, [] { wait_for_previous(); });
#endif
}

void fill_task(const ExpertProduct& product, ExpertRowsTask& group) {
  const TensorView matrix = product.weights.front()->view();
  ProductTask& task = group.each;
  task.in = static_cast<const __nv_bfloat16*>(product.in.data);
  task.in_stride = product.in.row_stride;
  task.outputs = static_cast<int>(matrix.rows);
  task.columns = static_cast<int>(matrix.columns);
  task.out = product.out.data;
  task.out_stride = product.out.row_stride;
  task.out_dtype = DType::kBF16;
  task.accumulate = Accumulate::kOverwrite;
  if (product.gate) {
    task.gated = static_cast<__nv_bfloat16*>(product.gate->out.data);
    task.gated_stride = product.gate->out.row_stride;
    task.activation = product.gate->known_activation();
  }
  group.items = product.items;
  group.in_order = product.in_order;
  group.follows = product.follows;
  for (size_t i = 0; i < product.weights.size(); ++i)
    group.weights[i] = static_cast<const __nv_bfloat16*>(product.weights[i]->view().data);
}

template <int kRows>
void launch(cudaStream_t stream, const ExpertRows& rows, const ExpertRowsTask& group) {
  static const int num_multiprocessors = attribute_of_device(cudaDevAttrMultiProcessorCount);
  static const cudaError_t is_allowed =
      cudaFuncSetAttribute(multiply_expert_rows_kernel<kRows>,
                           cudaFuncAttributeMaxDynamicSharedMemorySize, kMostSharedBytes);
  check_cuda(is_allowed, "use shared memory for experts' products");
  const auto per_item = static_cast<unsigned>(std::min(divide_up(num_multiprocessors, rows.per_row),
                                                       divide_up(group.each.num_tiles(), kWarps)));
  launch_chained(multiply_expert_rows_kernel<kRows>,
                 {.grid = dim3(per_item, static_cast<unsigned>(rows.most_items())),
                  .block = kThreads,
                  .shared_bytes = InputReader::bytes(group.each, kRows),
                  .stream = stream,
                  .rows = rows.rows},
                 group);
}

}  // namespace

bool has_expert_row_kernels() {
  static const bool has_kernel =
      runs_here(multiply_expert_rows_kernel<kMostFewRows>, kMostSharedBytes);
  return has_kernel;
}

void multiply_expert_rows(cudaStream_t stream, const ExpertProduct& product) {
  ExpertRowsTask group{};
  fill_task(product, group);
  if (product.rows.rows == 1) return launch<1>(stream, product.rows, group);
  if (product.rows.rows == 2) return launch<2>(stream, product.rows, group);
  launch<4>(stream, product.rows, group);
}

}  // namespace droidspeak::cuda
