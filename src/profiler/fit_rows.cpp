#include "profiler/fit_rows.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/error.h"

namespace droidspeak {

FitSums::FitSums(Device& device, int64_t columns)
    : device_(&device), columns_(columns), sums_(device, DType::kF32, columns + 1, 2 * columns) {}

void FitSums::add(Ops& ops, TensorView x, TensorView y) {
  ops.add_normal_equations(x, y, sums_.view());
  count_ += static_cast<double>(x.rows);
}

std::vector<float> FitSums::values() const {
  std::vector<float> out(static_cast<size_t>(sums_.rows() * sums_.columns()));
  device_->to_host(out.data(), sums_.view().data, out.size() * sizeof(float));
  return out;
}

void FitSums::restore(double count, const std::vector<float>& values) {
  check(std::ssize(values) == sums_.rows() * sums_.columns(), "sums of this width");
  count_ = count;
  device_->to_device(sums_.view().data, values.data(), values.size() * sizeof(float));
  device_->synchronize();
}

NormalEquations FitSums::read() const {
  NormalEquations out(columns_);
  std::vector<float> all = values();
  size_t products = out.products.size();
  size_t n = out.input_sum.size();
  for (size_t i = 0; i < n; ++i) {
    out.input_sum[i] = static_cast<double>(all[products + i]);
    out.difference_sum[i] = static_cast<double>(all[products + n + i]);
    if (!std::isfinite(out.input_sum[i]) || !std::isfinite(out.difference_sum[i]))
      throw Failure(ErrorCode::kDataCorrupt, "a model computes values that are not finite");
  }
  all.resize(products);
  out.products = std::move(all);
  out.count = count_;
  return out;
}

}  // namespace droidspeak
