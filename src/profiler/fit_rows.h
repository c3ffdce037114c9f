// Sums of a fit while they are collected: in device memory, so that rows never leave the device.
// No memory is taken before the first rows.
#pragma once

#include <vector>

#include "ops/ops.h"

namespace droidspeak {

class FitSums {
 public:
  FitSums(Device& device, int64_t columns);

  // Adds rows x of a sender and y of a receiver for the same tokens, [tokens, columns] of one
  // dtype.
  void add(Ops& ops, TensorView x, TensorView y);

  double count() const { return count_; }

  int64_t columns() const { return columns_; }

  // [x | 1]^T [x | y - x], [columns + 1, 2 * columns] f32; there are rows.
  TensorView view() const { return sums_.view(); }

  // As they lie, for a file; there are rows.
  std::vector<float> values() const;
  void restore(double count, const std::vector<float>& values);

  // Of sums that have rows.
  size_t bytes() const { return static_cast<size_t>(num_values()) * sizeof(float); }

  int64_t num_values() const { return (columns_ + 1) * 2 * columns_; }

 private:
  void allocate();

  Device* device_;
  int64_t columns_;
  double count_ = 0;
  Tensor sums_;
};

}  // namespace droidspeak
