#include "ops/cuda/experts/expert_product.h"

#include <algorithm>

#include "ops/cuda/quantized/strip_product.h"

namespace droidspeak::cuda {
namespace {

constexpr int64_t kColumnStep = 8;  // bf16 in one access
// Items of plain rows are small, so that with more the matrices are read again and again.
constexpr int64_t kMostPlainRows = 16;
constexpr int64_t kSmallStripItem = 8;
constexpr int64_t kLargeStripItem = 16;

bool is_like(const CudaMatrix& a, const CudaMatrix& b) {
  if (a.rows() != b.rows() || a.columns() != b.columns() || a.is_plain() != b.is_plain())
    return false;
  if (a.is_plain()) return a.view().dtype == b.view().dtype;
  return a.stacks().size() == 1 && b.stacks().size() == 1 &&
         a.stacks()[0].shape.dtype == b.stacks()[0].shape.dtype;
}

}  // namespace

int64_t rows_of_expert_item(std::span<const CudaMatrix* const> weights, int64_t rows) {
  const CudaMatrix& first = *weights.front();
  const bool are_alike =
      std::ranges::all_of(weights, [&](const CudaMatrix* each) { return is_like(first, *each); });
  if (!are_alike || std::ssize(weights) > kMostExperts || rows < 1 || first.rows() < 1 ||
      first.columns() % kColumnStep != 0)
    return 0;
  if (first.is_strips()) {
    if (rows > kMostStripRows || !has_expert_strip_kernels()) return 0;
    return rows <= kSmallStripItem ? kSmallStripItem : kLargeStripItem;
  }
  const bool is_possible = first.view().dtype == DType::kBF16 &&
                           first.columns() <= kMostColumnsOfFewRows && rows <= kMostPlainRows &&
                           has_expert_row_kernels();
  return is_possible ? kMostFewRows : 0;
}

void multiply_experts(cudaStream_t stream, const ExpertProduct& product) {
  const CudaMatrix& first = *product.weights.front();
  check(product.in.dtype == DType::kBF16 && product.in.columns == first.columns(),
        "rows for experts");
  check(product.out.data == nullptr ||
            (product.out.dtype == DType::kBF16 && product.out.columns == first.rows() &&
             product.out.rows == product.rows.places()),
        "room for what experts give");
  check(!product.gate || (product.gate->out.dtype == DType::kBF16 &&
                          2 * product.gate->out.columns == first.rows() &&
                          product.gate->out.rows == product.rows.places() &&
                          product.gate->out.columns % kColumnStep == 0),
        "room for what experts give behind their gate");
  if (first.is_strips()) return multiply_expert_strips(stream, product);
  multiply_expert_rows(stream, product);
}

}  // namespace droidspeak::cuda
