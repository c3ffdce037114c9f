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
    const StripPlanes bytes = shape.bytes_of_strips(shape.num_strips());
    auto* low =
        static_cast<std::byte*>(planes_.emplace_back(device.allocate(bytes.total())).data());
    stacks_.push_back({.shape = shape,
                       .first_row = first_row,
                       .low = low,
                       .high = low + bytes.low,
                       .scales = low + bytes.low + bytes.high,
                       .supers = low + bytes.low + bytes.high + bytes.scales});
    first_row += shape.rows;
  }
}

std::unique_ptr<CudaMatrix> CudaMatrix::of_fp8(Device& device, int64_t rows, int64_t columns) {
  auto matrix = std::make_unique<CudaMatrix>(device, DType::kI8, rows, columns);
  matrix->scales_ = Tensor(device, DType::kF32, rows, 1);
  return matrix;
}

size_t CudaMatrix::bytes() const {
  return std::accumulate(planes_.begin(), planes_.end(), values_.bytes() + scales_.bytes(),
                         [](size_t sum, const Buffer& plane) { return sum + plane.bytes(); });
}

std::string CudaMatrix::format() const {
  if (is_fp8()) return std::string(name_of(DType::kFp8));
  if (!is_strips()) return std::string(name_of(view_.dtype));
  std::string names;
  for (const StripStack& stack : stacks_)
    names += (names.empty() ? "" : "+") + std::string(name_of(stack.shape.dtype));
  return names;
}

}  // namespace droidspeak::cuda
