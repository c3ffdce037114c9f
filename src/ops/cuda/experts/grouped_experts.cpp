#include "ops/cuda/experts/grouped_experts.h"

#include "ops/cuda/experts/route.h"
#include "ops/cuda/kernels.h"

namespace droidspeak::cuda {
namespace {

constexpr uintptr_t kAccessBytes = 16;
constexpr int64_t kAccessElements = 8;

bool can_be_read(TensorView in) {
  return in.dtype == DType::kBF16 && in.row_stride % kAccessElements == 0 &&
         reinterpret_cast<uintptr_t>(in.data) % kAccessBytes == 0;
}

}  // namespace

bool GroupedExperts::prepare(const ExpertLayer& layer, TensorView in, TensorView out) {
  const auto num_experts = std::ssize(layer.experts);
  const int64_t places = in.rows * layer.choice.per_row;
  if (!can_be_read(in) || out.dtype != DType::kBF16 || places > kMostExpertPlaces ||
      num_experts > kMostExperts || layer.activation == Activation::kClampedSwish)
    return false;
  gate_up_.clear();
  down_.clear();
  for (const ExpertMatrices& expert : layer.experts) {
    gate_up_.push_back(&as_cuda(*expert.gate_up));
    down_.push_back(&as_cuda(*expert.down));
  }
  const int64_t rows_of_item = rows_of_expert_item(gate_up_, in.rows);
  if (rows_of_item == 0 || rows_of_item != rows_of_expert_item(down_, in.rows)) return false;
  router_ = &as_cuda(*layer.router);
  choice_ = layer.choice;
  activation_ = layer.activation;
  rows_ = {.rows = in.rows,
           .per_row = layer.choice.per_row,
           .num_experts = num_experts,
           .rows_of_item = rows_of_item};
  const auto words = static_cast<int64_t>(rows_.bytes_of_items() / sizeof(int32_t));
  logits_.reshape(device_, DType::kF32, in.rows, num_experts);
  items_.reshape(device_, DType::kI32, 1, words);
  weights_.reshape(device_, DType::kF32, in.rows, rows_.per_row);
  activated_.reshape(device_, DType::kBF16, places, down_.front()->columns());
  answers_.reshape(device_, DType::kBF16, places, out.columns);
  return true;
}

// All matrices of a kind have one shape and format, so their addresses say the rest.
void GroupedExperts::add_to(OpTrace& trace) const {
  trace.add(choice_.per_row);
  trace.add(static_cast<uint64_t>(choice_.weights));
  trace.add(activation_);
  trace.add(rows_.num_experts);
  trace.add(*router_);
  trace.add(*gate_up_.front());
  trace.add(*down_.front());
  for (const auto* matrices : {&gate_up_, &down_}) {
    for (const CudaMatrix* matrix : *matrices)
      trace.add(matrix->is_strips() ? static_cast<const void*>(matrix->stacks()[0].low)
                                    : matrix->view().data);
  }
  for (const Tensor* tensor : {&logits_, &items_, &weights_, &activated_, &answers_})
    trace.add(tensor->view());
}

void GroupedExperts::choose(cudaStream_t stream, const NormedRows& rows, const ExpertItems& items) {
  if (can_route(*router_, rows.normed()))
    return route(stream, {*router_, rows, choice_, rows_, items, weights_.view()});
  if (rows.norm) rms_norm(stream, rows.in, rows.norm->weight, rows.norm->epsilon, rows.norm->out);
  linear_.run({.weights = *router_, .in = rows.normed(), .out = logits_.view()});
  choose_items(stream, logits_.view(), choice_, rows_, items, weights_.view());
}

void GroupedExperts::run(cudaStream_t stream, const NormedRows& rows, TensorView out) {
  const ExpertItems items = rows_.items_in(static_cast<std::byte*>(items_.view().data));
  choose(stream, rows, items);
  multiply_experts(stream, {.weights = gate_up_,
                            .rows = rows_,
                            .items = items,
                            .in_order = ExpertProduct::In::kRows,
                            .in = rows.normed(),
                            .out = {},
                            .gate = GateAfter{activation_, activated_.view()}});
  multiply_experts(stream, {.weights = down_,
                            .rows = rows_,
                            .items = items,
                            .in_order = ExpertProduct::In::kPlaces,
                            .in = activated_.view(),
                            .out = answers_.view(),
                            .follows = true});
  add_weighted_rows(stream, answers_.view(), items.places, weights_.view(), out);
}

}  // namespace droidspeak::cuda
