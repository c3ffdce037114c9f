// What the tests of quantised weights share.
#pragma once

#include <algorithm>

#include "device/cuda/cuda_device.h"
#include "ops/cuda/cuda_fixture.h"
#include "ops/cuda/quantized/strips.h"

namespace droidspeak::cuda {

// The next number of columns that a file can hold in this format.
inline int64_t whole_blocks(DType dtype, int64_t columns) {
  const int64_t block = traits(dtype).block_elements;
  return (columns + block - 1) / block * block;
}

// A matrix as a file holds it and as numbers.
struct Quantized {
  DType dtype;
  int64_t rows;
  int64_t columns;
  std::vector<std::byte> bytes;
  Floats values;

  MatrixPart part() const {
    return {.dtype = dtype, .rows = rows, .columns = columns, .bytes = bytes, .row_order = {}};
  }
};

class StripFixture : public CudaTest {
 protected:
  Quantized quantized(DType dtype, int64_t rows, int64_t columns) {
    columns = whole_blocks(dtype, columns);
    auto bytes = cpu::random_matrix(random_, dtype, rows, columns);
    Floats values = cpu::dequantized(dtype, bytes, rows * columns);
    return {dtype, rows, columns, std::move(bytes), std::move(values)};
  }

  std::unique_ptr<WeightMatrix> pack(std::span<const Quantized> sources) {
    std::vector<MatrixPart> parts;
    for (const Quantized& source : sources) parts.push_back(source.part());
    return fast_->pack(parts, Precision::kFast);
  }

  cudaStream_t stream() const { return static_cast<CudaDevice&>(*device_).stream(); }

  static Floats rounded(Floats values) {
    for (float& value : values) value = float_from_bf16(bf16_from_float(value));
    return values;
  }
};

}  // namespace droidspeak::cuda
