// Matrices of activations: views that never own, and tensors that do. Everything a transformer
// moves is rows (tokens) by columns, so two dimensions and a row stride are all there is.
#pragma once

#include <cstdint>
#include <span>

#include "base/check.h"
#include "device/device.h"
#include "tensor/dtype.h"

namespace droidspeak {

// Non-owning [rows, columns] matrix of a plain dtype in device memory.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t row_stride = 0;  // in elements, >= columns

  TensorView row_range(int64_t begin, int64_t end) const {
    debug_check(begin >= 0 && begin <= end && end <= rows, "row range inside the tensor");
    return {static_cast<std::byte*>(data) + bytes_of(dtype, begin * row_stride), dtype, end - begin,
            columns, row_stride};
  }

  TensorView column_range(int64_t begin, int64_t end) const {
    debug_check(begin >= 0 && begin <= end && end <= columns, "column range inside the tensor");
    return {static_cast<std::byte*>(data) + bytes_of(dtype, begin), dtype, rows, end - begin,
            row_stride};
  }

  float* f32() const {
    debug_check(dtype == DType::kF32, "tensor holds f32");
    return static_cast<float*>(data);
  }

  float* f32_row(int64_t row) const { return f32() + row * row_stride; }
};

// Owning tensor; grows but never shrinks when reshaped, so that scratch tensors settle.
class Tensor {
 public:
  Tensor() = default;

  Tensor(Device& device, DType dtype, int64_t rows, int64_t columns)
      : dtype_(dtype), rows_(rows), columns_(columns) {
    buffer_ = device.allocate(droidspeak::bytes_of(dtype, rows * columns));
  }

  // Content is undefined after a call that grows.
  TensorView reshape(Device& device, DType dtype, int64_t rows, int64_t columns) {
    size_t bytes = droidspeak::bytes_of(dtype, rows * columns);
    if (bytes > buffer_.bytes()) {
      buffer_ = Buffer();
      buffer_ = device.allocate(bytes);
    }
    dtype_ = dtype;
    rows_ = rows;
    columns_ = columns;
    return view();
  }

  TensorView view() const { return {buffer_.data(), dtype_, rows_, columns_, columns_}; }

  size_t bytes() const { return buffer_.bytes(); }

  int64_t rows() const { return rows_; }

  int64_t columns() const { return columns_; }

 private:
  Buffer buffer_;
  DType dtype_ = DType::kF32;
  int64_t rows_ = 0;
  int64_t columns_ = 0;
};

}  // namespace droidspeak
