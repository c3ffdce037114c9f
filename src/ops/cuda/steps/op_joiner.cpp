#include "ops/cuda/steps/op_joiner.h"

#include <utility>

#include "ops/cuda/kernels.h"

namespace droidspeak::cuda {

void OpJoiner::flush() {
  if (norm_) {
    const NormBefore& norm = *norm_->norm;
    cuda::rms_norm(stream_, norm_->in, norm.weight, norm.epsilon, norm.out);
  }
  if (product_) multiply_few_rows(stream_, *product_);
  norm_.reset();
  product_.reset();
}

void OpJoiner::forget() {
  norm_.reset();
  product_.reset();
  stream_ = nullptr;
}

bool OpJoiner::rms_norm(TensorView in, const float* weight, float epsilon, TensorView out) {
  flush();
  // In place some blocks of the product would read what others have written.
  if (!is_active() || in.data == out.data || !few_rows_can_norm(in, weight, out)) return false;
  norm_ = {in, NormBefore{weight, epsilon, out}};
  return true;
}

bool OpJoiner::linear(const Product& product) {
  const bool has_norm = norm_ && is_same(norm_->norm->out, product.in);
  if (!is_active() || !linear_.takes_few_rows(product)) {
    flush();
    return false;
  }
  if (!has_norm) flush();
  product_.emplace(
      FewRowsProduct{product.weights, product.in, product.out, product.accumulate, product.bias});
  if (!has_norm) return true;
  product_->in = norm_->in;
  product_->norm = norm_->norm;
  norm_.reset();
  return true;
}

std::optional<NormedRows> OpJoiner::take_norm(TensorView rows) {
  if (!norm_ || !is_same(norm_->norm->out, rows)) {
    flush();
    return std::nullopt;
  }
  return std::exchange(norm_, std::nullopt);
}

bool OpJoiner::gated_activation(TensorView in, Activation activation, TensorView out) {
  const bool has_product = product_ && is_same(product_->out, in) &&
                           product_->accumulate == Accumulate::kOverwrite &&
                           in.dtype == DType::kBF16 && activation != Activation::kClampedSwish;
  if (has_product) product_->gate = {activation, out};
  flush();
  return has_product;
}

}  // namespace droidspeak::cuda
