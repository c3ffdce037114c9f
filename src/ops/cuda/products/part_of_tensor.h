// For tests of products that read columns [24, 88) of rows of 104 and are added, with a bias, to
// columns [8, 32) of rows of 56.
#pragma once

#include "ops/cpu/reference.h"

namespace droidspeak::cuda {

struct ProductIntoAPart {
  const cpu::Floats& weights;  // [24, 64]
  const cpu::Floats& in;       // [rows, 104]
  const cpu::Floats& before;   // [rows, 56]
  const cpu::Floats& bias;     // [24]
};

// [rows, 56]
inline cpu::Floats added_to_a_part(const ProductIntoAPart& task) {
  const int64_t rows = std::ssize(task.in) / 104;
  cpu::Floats dense;
  for (int64_t i = 0; i < rows; ++i)
    dense.insert(dense.end(), task.in.begin() + i * 104 + 24, task.in.begin() + i * 104 + 88);
  const cpu::Floats product = cpu::multiply(dense, task.weights, 64);
  cpu::Floats after = task.before;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < 24; ++j) {
      after[static_cast<size_t>(i * 56 + 8 + j)] +=
          product[static_cast<size_t>(i * 24 + j)] + task.bias[static_cast<size_t>(j)];
    }
  }
  return after;
}

}  // namespace droidspeak::cuda
