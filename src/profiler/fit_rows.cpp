#include "profiler/fit_rows.h"

#include "base/check.h"

namespace droidspeak {

FitSums::FitSums(Device& device, int64_t columns) : device_(&device), columns_(columns) {}

void FitSums::allocate() {
  if (sums_.bytes() == 0) sums_ = Tensor(*device_, DType::kF32, columns_ + 1, 2 * columns_);
}

void FitSums::add(Ops& ops, TensorView x, TensorView y) {
  allocate();
  ops.add_normal_equations(x, y, sums_.view());
  count_ += static_cast<double>(x.rows);
}

std::vector<float> FitSums::values() const {
  check(count_ > 0, "sums of some rows");
  std::vector<float> out(static_cast<size_t>(num_values()));
  device_->to_host(out.data(), sums_.view().data, bytes());
  return out;
}

void FitSums::restore(double count, const std::vector<float>& values) {
  check(std::ssize(values) == num_values(), "sums of this width");
  allocate();
  count_ = count;
  device_->to_device(sums_.view().data, values.data(), bytes());
  device_->synchronize();
}

}  // namespace droidspeak
