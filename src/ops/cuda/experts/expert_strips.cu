#include <algorithm>

#include "ops/cuda/experts/expert_product.h"
#include "ops/cuda/experts/item_of_block.cuh"
#include "ops/cuda/quantized/strip_kernel.cuh"
#include "ops/cuda/quantized/strip_launch.h"

namespace droidspeak::cuda {
namespace {

struct ExpertStripTask {
  StripTask each;  // what all items have in common
  ExpertItems items;
  ExpertProduct::In in_order;
  bool follows;
  size_t room;  // shared memory
  // Planes of a matrix, from where its `low` begins.
  size_t high;
  size_t scales;
  size_t supers;
  const unsigned char* low[kMostExperts];

  __device__ __forceinline__ StripTask of(const ExpertItem& item) const {
    StripTask task = each;
    const unsigned char* matrix = low[item.expert];
    task.weights.low = matrix;
    task.weights.high = matrix + high;
    task.weights.scales = matrix + scales;
    task.weights.supers = matrix + supers;
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

template <DType kDtype, int kTiles>
__global__ void __launch_bounds__(kStripThreads, kTiles == 1 ? 2 : 1)
    multiply_expert_strips_kernel(const __grid_constant__ ExpertStripTask group) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char bytes[];
  ExpertItem item;
  if (!find_item(group.items, group.follows, item)) return;
  StripTask task = group.of(item);
  share_out<kTiles, LaneChunk<kDtype>::kHasMinimum>(task, group.room);
  multiply_tiles<kDtype, kTiles>(task, bytes, [] { wait_for_previous(); });
#endif
}

void fill_task(const ExpertProduct& product, ExpertStripTask& group) {
  const StripStack& stack = product.weights.front()->stacks()[0];
  StripTask& task = group.each;
  task.weights = StripPointers::of(stack);
  task.outputs = static_cast<int>(stack.shape.rows);
  task.in = static_cast<const __nv_bfloat16*>(product.in.data);
  task.in_stride = product.in.row_stride;
  task.rows = static_cast<int>(std::min(product.rows.rows, product.rows.rows_of_item));
  task.columns = static_cast<int>(product.in.columns);
  task.out = product.out.data;
  task.out_stride = product.out.row_stride;
  task.out_dtype = DType::kBF16;
  task.accumulate = Accumulate::kOverwrite;
  if (product.gate) {
    task.gated = static_cast<__nv_bfloat16*>(product.gate->out.data);
    task.gated_stride = product.gate->out.row_stride;
    task.activation = product.gate->activation;
    task.gate_strips = task.outputs / 2 / kStripRows;
  }
  task.num_tiles = task.gate_strips > 0 ? task.gate_strips : divide_up(task.outputs, kTileRows);
  task.num_steps = divide_up(task.weights.num_chunks, kStepChunks);
  // For one row, whatever comes: so a row does not depend on the others.
  const auto per_row = static_cast<int>(product.rows.per_row);
  task.split = split_of(task.num_tiles * per_row, task.num_steps);
  group.items = product.items;
  group.in_order = product.in_order;
  group.follows = product.follows;
  group.high = static_cast<size_t>(stack.high - stack.low);
  group.scales = static_cast<size_t>(stack.scales - stack.low);
  group.supers = static_cast<size_t>(stack.supers - stack.low);
  for (size_t i = 0; i < product.weights.size(); ++i)
    group.low[i] = StripPointers::of(product.weights[i]->stacks()[0]).low;
}

// As much memory as suits items of usual size; larger ones take their input in parts. Returns how
// many blocks a multiprocessor has room for.
template <int kTiles, bool kHasMinimum>
int share_out_items(const ExpertRows& rows, ExpertStripTask& group) {
  using Memory = StripMemory<kTiles, kHasMinimum>;
  const StripRooms rooms = strip_rooms(rows.rows);
  StripTask largest = group.each;
  StripTask usual = group.each;
  usual.rows = std::min(largest.rows, divide_up(rows.places(), rows.num_experts));
  const int blocks = share_out_block<kTiles, kHasMinimum>(usual, rooms);
  if (blocks == 2) {
    share_out<kTiles, kHasMinimum>(largest, rooms.of_two);
    group.room = std::max(Memory::bytes(usual), Memory::bytes(largest));
    if (group.room <= rooms.of_two) return 2;
  }
  share_out<kTiles, kHasMinimum>(largest, rooms.of_one);
  group.room = std::max(Memory::bytes(usual), Memory::bytes(largest));
  return 1;
}

template <DType kDtype, int kTiles>
void launch(cudaStream_t stream, const ExpertRows& rows, ExpertStripTask group) {
  constexpr bool kHasMinimum = LaneChunk<kDtype>::kHasMinimum;
  static const cudaError_t is_allowed = cudaFuncSetAttribute(
      multiply_expert_strips_kernel<kDtype, kTiles>, cudaFuncAttributeMaxDynamicSharedMemorySize,
      static_cast<int>(kMostStripBytes));
  check_cuda(is_allowed, "use shared memory for experts' products");
  group.each.stage_bytes = static_cast<int>(stage_bytes(kDtype));
  const int per_multiprocessor = share_out_items<kTiles, kHasMinimum>(rows, group);
  const int blocks = num_multiprocessors() * per_multiprocessor;
  const auto per_item = static_cast<unsigned>(
      std::min(divide_up(blocks, rows.per_row),
               divide_up(group.each.num_tiles, group.each.groups_of_block())));
  launch_chained(multiply_expert_strips_kernel<kDtype, kTiles>,
                 {.grid = dim3(per_item, static_cast<unsigned>(rows.most_items())),
                  .block = kStripThreads,
                  .shared_bytes = group.room,
                  .stream = stream,
                  .rows = rows.rows},
                 group);
}

}  // namespace

bool has_expert_strip_kernels() {
  static const bool has_kernel =
      runs_here(multiply_expert_strips_kernel<DType::kQ4_0, 2>, kMostStripBytes);
  return has_kernel;
}

void multiply_expert_strips(cudaStream_t stream, const ExpertProduct& product) {
  ExpertStripTask group{};
  fill_task(product, group);
  with_strip_dtype(product.weights.front()->stacks()[0].shape.dtype, [&](auto dtype) {
    if (product.rows.rows_of_item <= 8) return launch<dtype.value, 1>(stream, product.rows, group);
    launch<dtype.value, 2>(stream, product.rows, group);
  });
}

}  // namespace droidspeak::cuda
