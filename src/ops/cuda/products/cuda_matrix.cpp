#include "ops/cuda/products/cuda_matrix.h"

#include <numeric>

namespace droidspeak::cuda {
namespace {

int64_t rows_of(std::span<const StripShape> shapes) {
  return std::accumulate(shapes.begin(), shapes.end(), int64_t{0},
                         [](int64_t sum, const StripShape& shape) { return sum + shape.rows; });
}

}  // namespace

CudaMatrix::CudaMatrix(Device& device, std::span<const StripShape> shapes)
    : WeightMatrix(rows_of(shapes), shapes.front().columns) {
  int64_t first_row = 0;
  for (const StripShape& shape : shapes) {
    const Buffer& strips = strips_.emplace_back(device.allocate(shape.bytes()));
    stacks_.push_back(
        {.shape = shape, .first_row = first_row, .strips = static_cast<std::byte*>(strips.data())});
    first_row += shape.rows;
  }
}

size_t CudaMatrix::bytes() const {
  return std::accumulate(strips_.begin(), strips_.end(), values_.bytes(),
                         [](size_t sum, const Buffer& strips) { return sum + strips.bytes(); });
}

std::string CudaMatrix::format() const {
  if (!is_quantized()) return std::string(name_of(view_.dtype));
  std::string names;
  for (const StripStack& stack : stacks_)
    names += (names.empty() ? "" : "+") + std::string(name_of(stack.shape.dtype));
  return names;
}

}  // namespace droidspeak::cuda
