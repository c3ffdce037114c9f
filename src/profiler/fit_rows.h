// Sums of a fit while they are collected: in device memory, so that rows never leave the device.
#pragma once

#include "ops/ops.h"
#include "profiler/map_fit.h"

namespace droidspeak {

class FitSums {
 public:
  FitSums(Device& device, int64_t columns);

  // Adds rows x of a sender and y of a receiver for the same tokens, [tokens, columns] of one
  // dtype.
  void add(Ops& ops, TensorView x, TensorView y);

  // Throws Failure when a value is not finite.
  NormalEquations read() const;

  // As they lie, for a file: the count, then [columns + 1, 2 * columns] f32.
  double count() const { return count_; }

  int64_t columns() const { return columns_; }

  std::vector<float> values() const;
  void restore(double count, const std::vector<float>& values);

 private:
  Device* device_;
  int64_t columns_;
  double count_ = 0;
  Tensor sums_;  // [x | 1]^T [x | y - x]
};

}  // namespace droidspeak
