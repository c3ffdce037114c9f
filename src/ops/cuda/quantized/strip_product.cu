#include <algorithm>

#include "device/cuda/cuda_check.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/quantized/digit_kernel.cuh"
#include "ops/cuda/quantized/strip_kernel.cuh"
#include "ops/cuda/quantized/strip_launch.h"
#include "ops/cuda/quantized/strip_product.h"

namespace droidspeak::cuda {
namespace {

constexpr int kVector = 8;  // bf16 in one access

constexpr DType kLargestDtype = DType::kQ8_0;  // of all strips

// What is needed at least, of which `columns` of the input.
constexpr StripTask least_task(int64_t rows, int64_t columns, const float* norm_weight) {
  StripTask task{};
  task.warps = kStripWarps;
  task.stage_bytes = static_cast<int>(stage_bytes(kLargestDtype));
  task.stages = kLeastStages;
  task.split = kStripWarps;
  task.rows = static_cast<int>(rows);
  task.columns = static_cast<int>(columns);
  task.num_steps = static_cast<int>((columns + kStepColumns - 1) / kStepColumns);
  task.phase_steps = task.num_steps;
  task.norm_weight = norm_weight;
  return task;
}

// There is room for the least part of the input.
constexpr int kPartColumns = kStripWarps * kStepColumns;
static_assert(StripMemory<2, true>::bytes(least_task(kStripPieceRows, kPartColumns, nullptr)) <=
              kMostStripBytes);
static_assert(kMostFewRows <= 8);
static_assert(StripMemory<1, true>::bytes(least_task(kMostFewRows, kPartColumns, nullptr)) <=
              strip_rooms(kMostFewRows).of_one);

constexpr StripTask least_digits(int64_t rows, int64_t columns, const float* norm_weight) {
  StripTask task = least_task(rows, columns, norm_weight);
  task.warps = kDigitWarps;
  return task;
}

static_assert(kMostDigitRows <= kMostFewRows);
static_assert(DigitMemory<true>::bytes(least_digits(kMostDigitRows, kPartColumns, nullptr)) <=
              strip_rooms(kMostDigitRows).of_one);

// Whether the kernel of digits norms its rows, of which it needs the whole.
bool can_norm(const FewRowsProduct& product) {
  const StripTask task = least_digits(product.in.rows, product.in.columns, product.norm->weight);
  return product.in.rows <= kMostDigitRows && DigitMemory<true>::bytes(task) <= kMostStripBytes;
}

template <class Memory>
void launch(cudaStream_t stream, StripTask task, const StripKernel<StripTask>& how) {
  task.warps = how.warps;
  const int blocks = num_multiprocessors() *
                     share_out_block<Memory>(task, strip_rooms(task.rows), how.most_blocks);
  const int grid = std::min(blocks, task.num_tiles);
  launch_chained(how.kernel,
                 {.grid = dim3(static_cast<unsigned>(grid)),
                  .block = dim3(static_cast<unsigned>(32 * how.warps)),
                  .shared_bytes = Memory::bytes(task),
                  .stream = stream,
                  .rows = task.rows},
                 task);
}

template <DType kDtype, int kTiles>
void launch_strips(cudaStream_t stream, const StripTask& task) {
  static const cudaError_t is_allowed = allow_shared_memory(multiply_strips_kernel<kDtype, kTiles>);
  check_cuda(is_allowed, "use shared memory for quantised products");
  using Memory = StripMemory<kTiles, LaneChunk<kDtype>::kHasMinimum>;
  launch<Memory>(stream, task,
                 {multiply_strips_kernel<kDtype, kTiles>, Memory::kMostBlocks, kStripWarps});
}

template <DType kDtype>
void launch_digits(cudaStream_t stream, const StripTask& task) {
  static const cudaError_t is_allowed = allow_shared_memory(multiply_digits_kernel<kDtype>);
  check_cuda(is_allowed, "use shared memory for quantised products");
  using Memory = DigitMemory<LaneChunk<kDtype>::kHasMinimum>;
  launch<Memory>(stream, task, {multiply_digits_kernel<kDtype>, 1, kDigitWarps});
}

void fill_input(const FewRowsProduct& product, StripTask& task) {
  task.in = static_cast<const __nv_bfloat16*>(product.in.data);
  task.in_stride = product.in.row_stride;
  task.rows = static_cast<int>(product.in.rows);
  task.columns = static_cast<int>(product.in.columns);
  if (!product.norm) return;
  task.norm_weight = product.norm->weight;
  task.norm_epsilon = product.norm->epsilon;
  task.normed = static_cast<__nv_bfloat16*>(product.norm->out.data);
  task.normed_stride = product.norm->out.row_stride;
}

void fill_output(const FewRowsProduct& product, int64_t first_column, StripTask& task) {
  const TensorView out = product.out.column_range(first_column, first_column + task.outputs);
  task.out = out.data;
  task.out_stride = out.row_stride;
  task.out_dtype = out.dtype;
  task.accumulate = product.accumulate;
  task.bias = product.bias == nullptr ? nullptr : product.bias + first_column;
  if (!product.gate) return;
  task.gated = static_cast<__nv_bfloat16*>(product.gate->out.data);
  task.gated_stride = product.gate->out.row_stride;
  task.activation = product.gate->known_activation();
  task.gate_strips = task.outputs / 2 / kStripRows;
}

// At most kStripPieceRows rows with the rows of one format.
void multiply_stack(cudaStream_t stream,
                    const FewRowsProduct& product,
                    const StripStack& stack,
                    int64_t all_rows) {
  StripTask task{};
  task.weights = StripPointers::of(stack);
  task.outputs = static_cast<int>(stack.shape.rows);
  fill_input(product, task);
  fill_output(product, stack.first_row, task);
  task.num_tiles = task.gate_strips > 0 ? task.gate_strips : divide_up(task.outputs, kTileRows);
  task.num_steps = divide_up(task.weights.num_chunks, kStepChunks);
  task.split = split_of(task.num_tiles, task.num_steps);
  task.stage_bytes = static_cast<int>(stage_bytes(stack.shape.dtype));
  with_strip_dtype(stack.shape.dtype, [&](auto dtype) {
    if (all_rows <= kMostDigitRows) return launch_digits<dtype.value>(stream, task);
    if (task.rows <= 8) return launch_strips<dtype.value, 1>(stream, task);
    launch_strips<dtype.value, 2>(stream, task);
  });
}

void multiply_piece(cudaStream_t stream, FewRowsProduct product, int64_t all_rows) {
  for (const StripStack& stack : product.weights.stacks()) {
    multiply_stack(stream, product, stack, all_rows);
    if (!product.norm) continue;
    product.in = product.norm->out;  // the first one has stored it
    product.norm.reset();
  }
}

FewRowsProduct rows_of(const FewRowsProduct& product, int64_t begin, int64_t end) {
  FewRowsProduct part = product;
  part.in = product.in.row_range(begin, end);
  part.out = product.out.row_range(begin, end);
  if (part.norm) part.norm->out = product.norm->out.row_range(begin, end);
  if (part.gate) part.gate->out = product.gate->out.row_range(begin, end);
  return part;
}

void check_product(const FewRowsProduct& product) {
  const auto& [weights, in, out, accumulate, bias, norm, gate] = product;
  check(!norm || few_rows_can_norm(in, norm->weight, norm->out), "rows normed before a product");
  check(!gate || (out.dtype == DType::kBF16 && gate->out.dtype == DType::kBF16 &&
                  weights.rows() == 2 * gate->out.columns),
        "shapes of a product with a gate");
}

// Both halves have the same format and begin with a strip.
bool can_gate(const CudaMatrix& weights) {
  return weights.stacks().size() == 1 && weights.rows() % (2 * kStripRows) == 0;
}

}  // namespace

bool strip_products_support(const CudaMatrix& weights, TensorView in, TensorView out) {
  static const bool has_kernel =
      runs_here(multiply_strips_kernel<DType::kQ4_0, 2>, kMostStripBytes);
  return has_kernel && weights.is_strips() && weights.rows() > 0 && in.rows >= 1 &&
         in.rows <= kMostStripRows && in.dtype == DType::kBF16 && is_packed(in, kVector) &&
         (out.dtype == DType::kBF16 || out.dtype == DType::kF32);
}

void multiply_strips(cudaStream_t stream, const FewRowsProduct& product) {
  check_product(product);
  FewRowsProduct whole = product;
  if (whole.gate && !can_gate(whole.weights)) whole.gate.reset();
  if (whole.norm && !can_norm(whole)) {
    rms_norm(stream, whole.in, whole.norm->weight, whole.norm->epsilon, whole.norm->out);
    whole.in = whole.norm->out;
    whole.norm.reset();
  }
  for (int64_t begin = 0; begin < whole.in.rows; begin += kStripPieceRows) {
    const int64_t end = std::min(begin + kStripPieceRows, whole.in.rows);
    multiply_piece(stream, rows_of(whole, begin, end), whole.in.rows);
  }
  if (product.gate && !whole.gate)
    gated_activation(stream, product.out, product.gate->activation, product.gate->out);
}

}  // namespace droidspeak::cuda
