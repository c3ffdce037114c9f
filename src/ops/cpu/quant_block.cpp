#include "ops/cpu/quant_block.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/dequantize.h"
#include "tensor/half.h"

namespace droidspeak::cpu {
namespace {

float load_f16(const uint8_t* bytes) {
  uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return float_from_f16(bits);
}

// 16 bytes: low nibbles are elements 0-15, high ones 16-31.
void read_nibbles(const uint8_t* bytes, uint8_t* quants) {
  for (int i = 0; i < 16; ++i) {
    quants[i] = bytes[i] & 15;
    quants[i + 16] = bytes[i] >> 4;
  }
}

// Fifth bits of 32 elements, one 32-bit word.
void add_fifth_bits(const uint8_t* bytes, uint8_t* quants) {
  uint32_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  for (int i = 0; i < kQuantBlock; ++i) {
    quants[i] = static_cast<uint8_t>(quants[i] | ((bits >> i & 1u) << 4));
  }
}

// 16 bytes of nibbles that stand for the values of a table; zero point 128.
void read_table(const uint8_t* bytes, const int8_t* table, uint8_t* quants) {
  read_nibbles(bytes, quants);
  for (int i = 0; i < kQuantBlock; ++i) quants[i] = static_cast<uint8_t>(table[quants[i]] + 128);
}

QuantBlock read_table_block(DType dtype, const uint8_t* bytes, int block) {
  QuantBlock out{};
  if (dtype == DType::kMXFP4) {
    out.scale = bytes[0] == 255 ? NAN : mxfp4_half_scale(bytes[0]);  // 255 is no power of two
    read_table(bytes + 1, kMxfp4Halves, out.quants);
    constexpr uint8_t kLargestSafe = 252;
    if (bytes[0] <= kLargestSafe) return out;
    for (uint8_t quant : out.quants) {
      if (!std::isfinite(out.scale * static_cast<float>(quant - 128))) out.scale = NAN;
    }
  } else if (dtype == DType::kIQ4_NL) {
    out.scale = load_f16(bytes);
    read_table(bytes + 2, kNonLinear4, out.quants);
  } else {
    out.scale = load_f16(bytes) * static_cast<float>(iq4_xs_scale(bytes, block));
    read_table(bytes + 8 + 16 * block, kNonLinear4, out.quants);
  }
  return out;
}

// Elements [32 * block, 32 * block + 32) of a super-block of 256.
void read_dequantized(DType dtype, const uint8_t* super, int block, float* values) {
  float all[256];
  const auto size = static_cast<size_t>(traits(dtype).block_bytes);
  dequantize(dtype, std::as_bytes(std::span(super, size)), all);
  std::copy_n(all + kQuantBlock * block, kQuantBlock, values);
}

// A value that is not finite shows in the scale, where the packer looks.
QuantBlock quantize(const float* values) {
  float largest = 0;
  float poison = 0;  // NaN when a value is not finite
  for (int i = 0; i < kQuantBlock; ++i) {
    largest = std::max(largest, std::abs(values[i]));
    poison += values[i] * 0.0f;
  }
  QuantBlock out{.quants = {}, .scale = largest / 127.0f + poison, .minimum = 0};
  if (!std::isfinite(out.scale)) return out;
  const float inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;
  for (int i = 0; i < kQuantBlock; ++i) {
    // All positive, so cutting off rounds.
    out.quants[i] = static_cast<uint8_t>(static_cast<int32_t>(values[i] * inverse + 128.5f));
  }
  return out;
}

QuantBlock read_small_block(DType dtype, const uint8_t* bytes) {
  QuantBlock out{.quants = {}, .scale = load_f16(bytes), .minimum = 0};
  switch (dtype) {
    case DType::kQ8_0:
      for (int i = 0; i < kQuantBlock; ++i)
        out.quants[i] = static_cast<uint8_t>(bytes[2 + i] + 128);
      break;
    case DType::kQ4_0:
      read_nibbles(bytes + 2, out.quants);
      break;
    case DType::kQ4_1:
      out.minimum = load_f16(bytes + 2);
      read_nibbles(bytes + 4, out.quants);
      break;
    case DType::kQ5_0:
      read_nibbles(bytes + 6, out.quants);
      add_fifth_bits(bytes + 2, out.quants);
      break;
    default:  // kQ5_1
      out.minimum = load_f16(bytes + 2);
      read_nibbles(bytes + 8, out.quants);
      add_fifth_bits(bytes + 4, out.quants);
  }
  return out;
}

QuantBlock read_affine_block(DType dtype, const uint8_t* bytes) {
  QuantBlock out{};
  std::memcpy(&out.scale, bytes, sizeof out.scale);
  std::memcpy(&out.minimum, bytes + 4, sizeof out.minimum);
  if (dtype == DType::kAffine4) {
    read_nibbles(bytes + 8, out.quants);
  } else {
    std::copy_n(bytes + 8, kQuantBlock, out.quants);
  }
  return out;
}

}  // namespace

PanelFormat packed_format(DType dtype) {
  using K = PanelKind;
  using S = ScaleKind;
  switch (dtype) {
    case DType::kF16:
      return {.kind = K::kF16};
    case DType::kBF16:
      return {.kind = K::kBF16};
    case DType::kQ4_0:
      return {.kind = K::kU4, .scales = S::kF16, .zero_point = 8};
    case DType::kQ4_1:
      return {.kind = K::kU4, .scales = S::kF16, .has_minimum = true};
    case DType::kQ4_K:
      return {.kind = K::kU4, .scales = S::kCodes, .has_minimum = true};
    case DType::kQ5_K:
      return {.kind = K::kU5, .scales = S::kCodes, .has_minimum = true};
    case DType::kQ6_K:
      return {.kind = K::kU6, .scales = S::kCodes, .zero_point = 32};
    case DType::kAffine4:
      return {.kind = K::kU4, .scales = S::kF32, .has_minimum = true};
    case DType::kQ5_0:
      return {.kind = K::kU8, .scales = S::kF16, .zero_point = 16};
    case DType::kQ5_1:
      return {.kind = K::kU8, .scales = S::kF16, .has_minimum = true};
    case DType::kAffine8:
      return {.kind = K::kU8, .scales = S::kF32, .has_minimum = true};
    case DType::kQ8_0:
      return {.kind = K::kU8, .scales = S::kF16, .zero_point = 128};
    case DType::kIQ4_NL:
      return {.kind = K::kU8, .scales = S::kF16, .zero_point = 128};
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kIQ4_XS:
    case DType::kMXFP4:
      return {.kind = K::kU8, .scales = S::kF32, .zero_point = 128};
    default:
      return {.kind = K::kF32};
  }
}

QuantBlock read_block(DType dtype, const std::byte* row, int64_t index) {
  const DTypeTraits& format = traits(dtype);
  const int64_t blocks_each = format.block_elements / kQuantBlock;
  const auto* bytes =
      reinterpret_cast<const uint8_t*>(row) + index / blocks_each * format.block_bytes;
  const auto block = static_cast<int>(index % blocks_each);
  switch (dtype) {
    case DType::kQ2_K:
    case DType::kQ3_K: {
      float values[kQuantBlock];
      read_dequantized(dtype, bytes, block, values);
      return quantize(values);
    }
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
    case DType::kMXFP4:
      return read_table_block(dtype, bytes, block);
    case DType::kAffine4:
    case DType::kAffine8:
      return read_affine_block(dtype, bytes);
    default:
      debug_check(blocks_each == 1, "a block format");
      return read_small_block(dtype, bytes);
  }
}

}  // namespace droidspeak::cpu
