#include <algorithm>

#include "ops/cuda/device_code/cluster.cuh"
#include "ops/cuda/experts/expert_product.h"
#include "ops/cuda/experts/item_of_block.cuh"
#include "ops/cuda/experts/route_row.cuh"
#include "ops/cuda/quantized/digit_kernel.cuh"
#include "ops/cuda/quantized/strip_kernel.cuh"
#include "ops/cuda/quantized/strip_launch.h"

namespace droidspeak::cuda {
namespace {

struct ExpertStripTask {
  StripTask each;  // what all items have in common
  ExpertItems items;
  ExpertProduct::In in_order;
  bool follows;
  size_t room;  // shared memory, but for the answers
  bool routes;  // the only row
  RouteTask route;
  // Where the experts of the only row are added up, null: they are not.
  const float* sum_weights;
  __nv_bfloat16* sum;
  const unsigned char* strips[kMostExperts];

  __device__ __forceinline__ StripTask of(const ExpertItem& item) const {
    StripTask task = each;
    task.weights.strips = strips[item.expert];
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

struct RouteMemory {
  alignas(16) __nv_bfloat16 row[kMostRouteColumns];
  float sums[kRouteShares];
  float logits[kMostRoutedExperts];
  float weights[kMostRoutedExperts];
  int32_t chosen[kMostRoutedExperts];
  int32_t counts[kMostExperts];
};

// Every block routes the only row for itself; the first one tells others. The next kernel starts
// when it has.
__device__ inline ExpertItem route_item(const RouteTask& route, RouteMemory& memory) {
  constexpr int kThreads = 32 * kDigitWarps;
  const RouterPart<kThreads> part(route);
  wait_for_previous();
  route_row<kThreads>(route, part, 0, memory.row, memory.sums, memory.logits);
  __syncthreads();
  const bool is_first = blockIdx.x == 0 && blockIdx.y == 0;
  ChoiceTask choice = route.choice;
  choice.logits = memory.logits;
  if (!is_first) choice.weights = memory.weights;
  if (threadIdx.x < 32) choose_row(choice, 0, memory.chosen);
  if (is_first) {
    sort_choices(route.sort, memory.chosen, memory.counts);
    __threadfence();
  }
  __syncthreads();
  let_next_start();
  const auto place = static_cast<int32_t>(blockIdx.y);  // experts in ascending order
  ExpertItem item{0, place, 1};
  for (int i = 0; i < route.sort.per_row; ++i) {
    int32_t before = 0;
    for (int j = 0; j < route.sort.per_row; ++j)
      before += memory.chosen[j] < memory.chosen[i] ? 1 : 0;
    if (before == place) item.expert = memory.chosen[i];
  }
  fence_before_copies();
  __syncthreads();
  return item;
}

// Adds up what the blocks of a cluster have, an expert each, for the outputs of their tiles. The
// choices are added in their order.
__device__ inline void add_answers(const ExpertStripTask& group,
                                   const StripTask& task,
                                   const __nv_bfloat16* answers) {
  sync_cluster();
  const auto blocks = static_cast<int>(gridDim.x);
  const auto per_row = static_cast<int>(gridDim.y);
  const int first = static_cast<int>(threadIdx.x) + static_cast<int>(blockIdx.y * blockDim.x);
  for (int i = first;; i += per_row * static_cast<int>(blockDim.x)) {
    const int tile = static_cast<int>(blockIdx.x) + i / kTileRows * blocks;
    if (tile >= task.num_tiles) break;
    const int output = tile * kTileRows + i % kTileRows;
    if (output >= task.outputs) continue;
    float sum = to_float(group.sum[output]);
    for (int choice = 0; choice < per_row; ++choice)
      sum += group.sum_weights[choice] *
             to_float(read_of_block(answers + output, group.items.places[choice]));
    group.sum[output] = from_float<__nv_bfloat16>(sum);
  }
  sync_cluster();  // until all have been read
}

template <DType kDtype>
__global__ void __launch_bounds__(32 * kDigitWarps)
    multiply_expert_digits_kernel(const __grid_constant__ ExpertStripTask group) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char bytes[];
  ExpertItem item;
  if (group.routes) {
    item = route_item(group.route, *reinterpret_cast<RouteMemory*>(bytes));
  } else if (!find_item(group.items, group.follows, item)) {
    return;
  }
  StripTask task = group.of(item);
  if (group.routes) task.in_rows = nullptr;
  share_out<DigitMemory<LaneChunk<kDtype>::kHasMinimum>>(task, group.room);
  auto* answers = reinterpret_cast<__nv_bfloat16*>(bytes + group.room);
  if (group.sum != nullptr) task.out = answers;
  multiply_digit_tiles<kDtype>(task, bytes, [] { wait_for_previous(); });
  if (group.sum != nullptr) add_answers(group, task, answers);
#endif
}

template <DType kDtype, int kTiles>
__global__ void __launch_bounds__(kStripThreads, kTiles == 1 ? 2 : 1)
    multiply_expert_strips_kernel(const __grid_constant__ ExpertStripTask group) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char bytes[];
  ExpertItem item;
  if (!find_item(group.items, group.follows, item)) return;
  StripTask task = group.of(item);
  share_out<StripMemory<kTiles, LaneChunk<kDtype>::kHasMinimum>>(task, group.room);
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
    task.activation = product.gate->known_activation();
    task.gate_strips = task.outputs / 2 / kStripRows;
  }
  task.num_tiles = task.gate_strips > 0 ? task.gate_strips : divide_up(task.outputs, kTileRows);
  task.num_steps = divide_up(task.weights.num_chunks, kStepChunks);
  // For one row, whatever comes: so a row does not depend on the others.
  const auto per_row = static_cast<int>(product.rows.per_row);
  task.split = split_of(task.num_tiles * per_row, task.num_steps);
  if (product.route != nullptr) {
    const NormedRows& rows = product.route->rows;
    group.routes = true;
    group.route = route_task(*product.route);
    group.route.normed = nullptr;  // the product stores it
    task.in = static_cast<const __nv_bfloat16*>(rows.in.data);
    if (rows.norm) {
      task.norm_weight = rows.norm->weight;
      task.norm_epsilon = rows.norm->epsilon;
      task.normed = static_cast<__nv_bfloat16*>(rows.norm->out.data);
      task.normed_stride = rows.norm->out.row_stride;
    }
  }
  if (product.sum) {
    group.sum_weights = product.sum->weights.f32();
    group.sum = static_cast<__nv_bfloat16*>(product.sum->out.data);
  }
  group.items = product.items;
  group.in_order = product.in_order;
  group.follows = product.follows;
  for (size_t i = 0; i < product.weights.size(); ++i)
    group.strips[i] = StripPointers::of(product.weights[i]->stacks()[0]).strips;
}

// Of a row's answers, in shared memory.
size_t bytes_of_answers(const ExpertStripTask& group) {
  return group.sum == nullptr ? 0 : static_cast<size_t>(group.each.outputs) * sizeof(__nv_bfloat16);
}

// As much memory as suits items of usual size; larger ones take their input in parts. Returns how
// many blocks a multiprocessor has room for.
template <class Memory>
int share_out_items(const ExpertRows& rows, ExpertStripTask& group, int most_blocks) {
  const StripRooms rooms = strip_rooms(rows.rows, bytes_of_answers(group));
  StripTask largest = group.each;
  StripTask usual = group.each;
  usual.rows = std::min(largest.rows, divide_up(rows.places(), rows.num_experts));
  const int blocks = share_out_block<Memory>(usual, rooms, most_blocks);
  if (blocks == 2) {
    share_out<Memory>(largest, rooms.of_two);
    group.room = std::max(Memory::bytes(usual), Memory::bytes(largest));
    if (group.room <= rooms.of_two) return 2;
  }
  share_out<Memory>(largest, rooms.of_one);
  group.room = std::max(Memory::bytes(usual), Memory::bytes(largest));
  return 1;
}

template <class Memory>
void launch(cudaStream_t stream,
            const ExpertRows& rows,
            ExpertStripTask group,
            const StripKernel<ExpertStripTask>& how) {
  group.each.warps = how.warps;
  const int per_multiprocessor = share_out_items<Memory>(rows, group, how.most_blocks);
  const int blocks = num_multiprocessors() * per_multiprocessor;
  const auto per_item = static_cast<unsigned>(
      std::min(divide_up(blocks, rows.per_row),
               divide_up(group.each.num_tiles, group.each.groups_of_block())));
  launch_chained(how.kernel,
                 {.grid = dim3(per_item, static_cast<unsigned>(rows.most_items())),
                  .block = dim3(static_cast<unsigned>(32 * how.warps)),
                  .shared_bytes = group.room + bytes_of_answers(group),
                  .stream = stream,
                  .rows = rows.rows,
                  .cluster = group.sum == nullptr ? 1 : static_cast<unsigned>(rows.per_row)},
                 group);
}

template <DType kDtype, int kTiles>
void launch_strips(cudaStream_t stream, const ExpertRows& rows, const ExpertStripTask& group) {
  static const cudaError_t is_allowed =
      allow_shared_memory(multiply_expert_strips_kernel<kDtype, kTiles>);
  check_cuda(is_allowed, "use shared memory for experts' products");
  using Memory = StripMemory<kTiles, LaneChunk<kDtype>::kHasMinimum>;
  launch<Memory>(stream, rows, group,
                 {multiply_expert_strips_kernel<kDtype, kTiles>, Memory::kMostBlocks, kStripWarps});
}

template <DType kDtype>
void launch_digits(cudaStream_t stream, const ExpertRows& rows, const ExpertStripTask& group) {
  static const cudaError_t is_allowed = allow_shared_memory(multiply_expert_digits_kernel<kDtype>);
  check_cuda(is_allowed, "use shared memory for experts' products");
  using Memory = DigitMemory<LaneChunk<kDtype>::kHasMinimum>;
  launch<Memory>(stream, rows, group, {multiply_expert_digits_kernel<kDtype>, 1, kDigitWarps});
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
  const DType format = product.weights.front()->stacks()[0].shape.dtype;
  group.each.stage_bytes = static_cast<int>(stage_bytes(format));
  with_strip_dtype(format, [&](auto dtype) {
    if (product.rows.rows <= kMostDigitRows)
      return launch_digits<dtype.value>(stream, product.rows, group);
    if (product.rows.rows_of_item <= 8)
      return launch_strips<dtype.value, 1>(stream, product.rows, group);
    launch_strips<dtype.value, 2>(stream, product.rows, group);
  });
}

}  // namespace droidspeak::cuda
