// Weights for benchmarks of the CUDA operations, made without a file.
#pragma once

#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#include "ops/cuda/quantized/strips.h"
#include "ops/ops.h"

namespace droidspeak::cuda {

// Random weights as a file holds them, for matrices of any shape of up to `count` elements.
class RandomWeights {
 public:
  RandomWeights(DType dtype, int64_t count) : dtype_(dtype), bytes_(bytes_of(dtype, count)) {
    std::minstd_rand random(1);
    if (dtype == DType::kBF16) {
      for (size_t i = 0; i < bytes_.size(); i += 2)  // of magnitude 2^-8 to 2^-7
        store(i, static_cast<uint16_t>(0x3b80 | (random() & 0x807f)));
      return;
    }
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>(random() >> 8);
    const auto step = static_cast<size_t>(traits(dtype).block_bytes);
    if (dtype == DType::kFp8) {
      make_fp8(step);
      return;
    }
    const uint16_t scale = strip_format(dtype).has_supers ? 0x0400 : 0x1000;  // f16, 2^-14, 2^-11
    for (size_t at = 0; at < bytes_.size(); at += step) {
      store(at + (dtype == DType::kQ6_K ? 208 : 0), scale);
      if (strip_format(dtype).has_minimum) store(at + 2, scale);
    }
  }

  std::unique_ptr<WeightMatrix> matrix(Ops& ops, int64_t rows, int64_t columns) const {
    const MatrixPart part{.dtype = dtype_,
                          .rows = rows,
                          .columns = columns,
                          .bytes = std::span(bytes_).first(bytes_of(dtype_, rows * columns)),
                          .row_order = {}};
    return ops.pack({&part, 1}, Precision::kFast);
  }

 private:
  // Of the deviation that the bf16 ones have.
  void make_fp8(size_t step) {
    const float scale = 4e-5f;
    for (size_t at = 0; at < bytes_.size(); at += step) {
      std::memcpy(bytes_.data() + at, &scale, sizeof scale);
      for (size_t i = at + sizeof scale; i < at + step; ++i) {
        if ((bytes_[i] & std::byte{0x7f}) == std::byte{0x7f}) bytes_[i] = std::byte{0};
      }
    }
  }

  void store(size_t at, uint16_t bits) { std::memcpy(bytes_.data() + at, &bits, sizeof bits); }

  DType dtype_;
  std::vector<std::byte> bytes_;
};

}  // namespace droidspeak::cuda
