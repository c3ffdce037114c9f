// A quantised matrix as tensors of a Hugging Face folder hold it. Shapes are checked while it is
// made; codes and scales are read, and checked, when the matrix is asked for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "model/quantized/quantization_config.h"

namespace droidspeak {

// Tensors of one linear layer. Which of the optional ones there are depends on the layout.
struct QuantizedParts {
  std::string module;  // "model.layers.0.mlp.down_proj"
  OtherTensor codes;
  FileTensor scales;
  std::optional<OtherTensor> zeros;
  std::optional<OtherTensor> group_index;
  std::optional<OtherTensor> shape;
};

class QuantizedMatrix {
 public:
  // Throws Failure naming `path` and the tensor.
  QuantizedMatrix(const std::filesystem::path& path,
                  const QuantizationConfig& config,
                  QuantizedParts parts);

  int64_t rows() const { return rows_; }

  int64_t columns() const { return columns_; }

  // The format that holds it without loss: fp8 where a row has one scale and the
  // other side is rounded alike, q4_0, q8_0 or an affine
  // one where 32 columns side by side have one, else f32.
  DType dtype() const { return dtype_; }

  // All rows in that format. Throws Failure naming the tensor.
  void read(std::vector<std::byte>& out) const;

 private:
  using Layout = QuantizationConfig::Layout;
  using Zero = QuantizationConfig::Zero;
  using Shape = std::vector<int64_t>;

  [[noreturn]] void refuse(const std::string& tensor, const std::string& what) const;
  void expect(const OtherTensor& tensor, std::string_view dtype, const Shape& shape) const;
  void find_size();
  void read_shape();
  void place_scales();
  void check_zeros() const;
  void read_group_index();
  DType best_dtype() const;

  int64_t per_word() const { return 32 / config_.bits; }

  int32_t middle() const { return 1 << (config_.bits - 1); }

  bool has_columns_outside() const {
    return config_.layout == Layout::kGptq || config_.layout == Layout::kAwq;
  }

  std::vector<uint8_t> read_codes() const;  // [rows, columns]
  std::vector<float> read_scales() const;   // [scale rows, groups]
  std::vector<int32_t> read_zeros() const;  // the same
  std::vector<uint8_t> stored_zeros() const;

  std::filesystem::path path_;
  QuantizationConfig config_;
  QuantizedParts parts_;
  int64_t rows_ = 0;
  int64_t columns_ = 0;
  // The grid of scales: a row of it is for so many of the matrix, a column for a group.
  int64_t scale_rows_ = 0;
  int64_t rows_of_scale_ = 0;
  int64_t groups_ = 0;
  std::vector<int32_t> group_of_;  // [columns]
  DType dtype_ = DType::kF32;
};

}  // namespace droidspeak
