#include "model/quantized/quantized_matrix.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "formats/byte_reader.h"
#include "model/quantized/unpack.h"
#include "tensor/dequantize.h"

namespace droidspeak {
namespace {

constexpr int64_t kMostSize = 1 << 24;  // rows or columns
constexpr int64_t kBlock = 32;

int64_t parts_of(int64_t whole, int64_t part) {
  return (whole + part - 1) / part;
}

template <class T>
std::vector<T> read_as(const OtherTensor& tensor) {
  std::vector<std::byte> bytes;
  tensor.bytes.read(bytes);
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

// Dimensions of one at the end may be left out.
bool fits(std::vector<int64_t> shape, std::vector<int64_t> wanted) {
  while (!shape.empty() && shape.back() == 1) shape.pop_back();
  while (!wanted.empty() && wanted.back() == 1) wanted.pop_back();
  return shape == wanted;
}

}  // namespace

QuantizedMatrix::QuantizedMatrix(const std::filesystem::path& path,
                                 const QuantizationConfig& config,
                                 QuantizedParts parts)
    : path_(path), config_(config), parts_(std::move(parts)) {
  find_size();
  place_scales();
  check_zeros();
  read_group_index();
  dtype_ = best_dtype();
}

void QuantizedMatrix::refuse(const std::string& tensor, const std::string& what) const {
  throw Failure(ErrorCode::kInvalidArgument,
                fmt::format("{}: tensor {} {}", path_.string(), in_quotes(tensor), what));
}

void QuantizedMatrix::expect(const OtherTensor& tensor,
                             std::string_view dtype,
                             const Shape& shape) const {
  if (tensor.dtype != dtype)
    refuse(tensor.name, fmt::format("is {}: expected {}", tensor.dtype, dtype));
  if (tensor.shape != shape) {
    refuse(tensor.name, fmt::format("has shape [{}]: expected [{}]", fmt::join(tensor.shape, ", "),
                                    fmt::join(shape, ", ")));
  }
}

void QuantizedMatrix::find_size() {
  const OtherTensor& codes = parts_.codes;
  auto is_size = [](int64_t size) { return size >= 1 && size <= kMostSize; };
  if (codes.shape.size() != 2 || !is_size(codes.shape[0]) || !is_size(codes.shape[1]))
    refuse(codes.name,
           fmt::format("has shape [{}]: expected rows and columns", fmt::join(codes.shape, ", ")));
  rows_ = codes.shape[0];
  columns_ = codes.shape[1];
  switch (config_.layout) {
    case Layout::kGptq:
      columns_ = codes.shape[0] * per_word();
      rows_ = codes.shape[1];
      return expect(codes, "I32", codes.shape);
    case Layout::kAwq:
      columns_ = codes.shape[0];
      rows_ = codes.shape[1] * per_word();
      return expect(codes, "I32", codes.shape);
    case Layout::kPacked:
      read_shape();
      return expect(codes, "I32", {rows_, parts_of(columns_, per_word())});
    case Layout::kBytes: {
      const bool is_float = config_.code == QuantizationConfig::Code::kFloat;
      return expect(codes, is_float ? "F8_E4M3" : "I8", codes.shape);
    }
    case Layout::kMxfp4:
      break;
  }
}

void QuantizedMatrix::read_shape() {
  const OtherTensor& shape = *parts_.shape;
  expect(shape, shape.dtype == "I32" ? "I32" : "I64", {2});
  std::vector<int64_t> sizes;
  if (shape.dtype == "I64") {
    sizes = read_as<int64_t>(shape);
  } else {
    for (int32_t size : read_as<int32_t>(shape)) sizes.push_back(size);
  }
  for (int64_t size : sizes) {
    if (size < 1 || size > kMostSize)
      refuse(shape.name, fmt::format("holds {}: expected 1 to {}", size, kMostSize));
  }
  rows_ = sizes[0];
  columns_ = sizes[1];
}

void QuantizedMatrix::place_scales() {
  QuantizationConfig::ScaleBlock block = config_.scale_block;
  const FileTensor& scales = parts_.scales;
  if (config_.may_scale_rows && fits(scales.shape, {})) block.rows = 0;
  rows_of_scale_ = block.rows == 0 ? rows_ : block.rows;
  const int64_t columns_of_scale = block.columns == 0 ? columns_ : block.columns;
  scale_rows_ = parts_of(rows_, rows_of_scale_);
  groups_ = parts_of(columns_, columns_of_scale);
  if (config_.has_whole_groups && groups_ > 1 && columns_ % columns_of_scale != 0) {
    refuse(parts_.codes.name,
           fmt::format("has {} columns: expected a multiple of the group_size, {}", columns_,
                       columns_of_scale));
  }
  const Shape wanted = has_columns_outside() ? Shape{groups_, rows_} : Shape{scale_rows_, groups_};
  const bool is_right = has_columns_outside() ? scales.shape == wanted : fits(scales.shape, wanted);
  if (!is_right) {
    refuse(scales.name, fmt::format("has shape [{}]: expected [{}]", fmt::join(scales.shape, ", "),
                                    fmt::join(wanted, ", ")));
  }
  group_of_.reserve(static_cast<size_t>(columns_));
  for (int64_t c = 0; c < columns_; ++c)
    group_of_.push_back(static_cast<int32_t>(c / columns_of_scale));
}

void QuantizedMatrix::check_zeros() const {
  if (!parts_.zeros) {
    const bool is_missing = has_columns_outside() || config_.zero == Zero::kStored;
    if (is_missing) refuse(parts_.codes.name, "has no zero points beside it");
    return;
  }
  const OtherTensor& zeros = *parts_.zeros;
  if (has_columns_outside()) {
    if (rows_ % per_word() != 0)
      refuse(zeros.name,
             fmt::format("is for {} rows: expected a multiple of {}", rows_, per_word()));
    return expect(zeros, "I32", {groups_, rows_ / per_word()});
  }
  if (zeros.dtype == "I32")
    return expect(zeros, "I32", {parts_of(scale_rows_, per_word()), groups_});
  expect(zeros, "I8", parts_.scales.shape);
}

void QuantizedMatrix::read_group_index() {
  if (!parts_.group_index) {
    if (config_.needs_group_index && groups_ > 1)
      refuse(parts_.codes.name, "has no g_idx beside it though columns are ordered by activation");
    return;
  }
  const OtherTensor& index = *parts_.group_index;
  expect(index, "I32", {columns_});
  const std::vector<int32_t> groups = read_as<int32_t>(index);
  // compressed-tensors leaves it at -1 where columns are in order.
  const bool is_unset = std::ranges::all_of(groups, [](int32_t group) { return group == -1; });
  if (is_unset && config_.layout == Layout::kPacked) return;
  for (int32_t group : groups) {
    if (group < 0 || group >= groups_)
      refuse(index.name, fmt::format("holds group {}: expected 0 to {}", group, groups_ - 1));
  }
  group_of_ = groups;
}

DType QuantizedMatrix::best_dtype() const {
  if (columns_ % kBlock != 0) return DType::kF32;
  if (config_.code == QuantizationConfig::Code::kFloat)
    return config_.rounds_input && groups_ == 1 ? DType::kFp8 : DType::kF32;
  for (int64_t first = 0; first < columns_; first += kBlock) {
    const auto begin = group_of_.begin() + first;
    if (std::adjacent_find(begin, begin + kBlock, std::not_equal_to<>()) != begin + kBlock)
      return DType::kF32;
  }
  // These have a scale of 16 bits and their zero in the middle.
  const bool is_plain = config_.zero == Zero::kMiddle && parts_.scales.dtype == DType::kF16;
  if (config_.bits == 4) return is_plain ? DType::kQ4_0 : DType::kAffine4;
  return is_plain ? DType::kQ8_0 : DType::kAffine8;
}

std::vector<uint8_t> QuantizedMatrix::read_codes() const {
  const OtherTensor& codes = parts_.codes;
  switch (config_.layout) {
    case Layout::kGptq:
      return unpack_columns(read_as<uint32_t>(codes), config_.bits, rows_);
    case Layout::kAwq:
      return transposed(unpack_awq_lines(read_as<uint32_t>(codes)), columns_, rows_);
    case Layout::kPacked:
      return unpack_lines(read_as<uint32_t>(codes), config_.bits, rows_, columns_);
    case Layout::kBytes:
    case Layout::kMxfp4:
      break;
  }
  std::vector<uint8_t> bytes = read_as<uint8_t>(codes);
  if (config_.code == QuantizationConfig::Code::kInteger) {
    for (uint8_t& byte : bytes) byte ^= 0x80;  // plus 128
  }
  return bytes;
}

std::vector<float> QuantizedMatrix::read_scales() const {
  std::vector<float> scales = parts_.scales.read_floats();
  if (!has_columns_outside()) return scales;
  std::vector<float> turned(scales.size());
  for (int64_t group = 0; group < groups_; ++group) {
    for (int64_t row = 0; row < rows_; ++row)
      turned[static_cast<size_t>(row * groups_ + group)] =
          scales[static_cast<size_t>(group * rows_ + row)];
  }
  return turned;
}

// As codes: signed ones plus the middle.
std::vector<uint8_t> QuantizedMatrix::stored_zeros() const {
  const OtherTensor& zeros = *parts_.zeros;
  if (config_.layout == Layout::kAwq)
    return transposed(unpack_awq_lines(read_as<uint32_t>(zeros)), groups_, rows_);
  if (config_.layout == Layout::kGptq) {
    return transposed(unpack_lines(read_as<uint32_t>(zeros), config_.bits, groups_, rows_), groups_,
                      rows_);
  }
  std::vector<uint8_t> codes;
  if (zeros.dtype == "I32") {
    // Packed along rows, and those that fill the last word up are no rows.
    codes = unpack_columns(read_as<uint32_t>(zeros), config_.bits, groups_);
    const int64_t padded = std::ssize(codes) / groups_;
    codes = transposed(codes, groups_, padded);
    codes.resize(static_cast<size_t>(scale_rows_ * groups_));
    return codes;
  }
  for (int8_t zero : read_as<int8_t>(zeros)) {
    if (zero < -middle() || zero >= middle())
      refuse(zeros.name, fmt::format("holds {}: expected {} to {}", zero, -middle(), middle() - 1));
    codes.push_back(static_cast<uint8_t>(zero + middle()));
  }
  return codes;
}

std::vector<int32_t> QuantizedMatrix::read_zeros() const {
  const auto size = static_cast<size_t>(scale_rows_ * groups_);
  std::vector<int32_t> zeros(size, middle());
  if (!parts_.zeros) return zeros;
  const std::vector<uint8_t> stored = stored_zeros();
  const int32_t mask = 2 * middle() - 1;
  for (size_t i = 0; i < size; ++i) {
    zeros[i] = (stored[i] + config_.zero_offset) & mask;
    if (config_.zero == Zero::kMiddle && zeros[i] != middle()) {
      refuse(parts_.zeros->name,
             fmt::format("holds zero point {}: expected {}, as the scheme is symmetric", zeros[i],
                         middle()));
    }
  }
  return zeros;
}

void QuantizedMatrix::read(std::vector<std::byte>& out) const {
  const std::vector<uint8_t> codes = read_codes();
  const std::vector<float> scales = read_scales();
  const std::vector<int32_t> zeros = read_zeros();
  const bool is_float = config_.code == QuantizationConfig::Code::kFloat;
  float table[256];
  for (int code = 0; code < 256; ++code)
    table[code] = is_float ? float_from_e4m3(static_cast<uint8_t>(code)) : static_cast<float>(code);
  const int64_t step = traits(dtype_).block_elements;
  const auto block_bytes = static_cast<size_t>(traits(dtype_).block_bytes);
  out.resize(bytes_of(dtype_, rows_ * columns_));
  std::byte* to = out.data();
  for (int64_t row = 0; row < rows_; ++row) {
    const int64_t first = row / rows_of_scale_ * groups_;
    const uint8_t* line = codes.data() + row * columns_;
    for (int64_t c = 0; c < columns_; c += step, to += block_bytes) {
      const auto at = static_cast<size_t>(first + group_of_[static_cast<size_t>(c)]);
      if (dtype_ != DType::kF32) {
        store_block(dtype_, {line + c, kBlock}, scales[at], zeros[at], to);
        continue;
      }
      const float zero = is_float ? 0.0f : static_cast<float>(zeros[at]);
      const float value = scales[at] * (table[line[c]] - zero);
      std::memcpy(to, &value, sizeof value);
    }
  }
}

}  // namespace droidspeak
