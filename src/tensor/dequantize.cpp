// Bit layouts of the GGUF block formats and of our own. Fields are little endian; scales are f16.
// The order of the float operations is that of ggml, so that results are equal to the bit.
#include "tensor/dequantize.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "tensor/half.h"

namespace droidspeak {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr int kSmallBlock = 32;

uint16_t load_u16(const uint8_t* bytes) {
  uint16_t value = 0;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

uint32_t load_u32(const uint8_t* bytes) {
  uint32_t value = 0;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

float load_f16(const uint8_t* bytes) {
  return float_from_f16(load_u16(bytes));
}

// f16 scale, 32 signed bytes.
void expand_q8_0(const uint8_t* __restrict block, float* __restrict out) {
  float scale = load_f16(block);
  const uint8_t* quants = block + 2;
  for (int i = 0; i < kSmallBlock; ++i) {
    out[i] = static_cast<float>(static_cast<int8_t>(quants[i])) * scale;
  }
}

// f16 scale, 16 bytes: low nibbles are elements 0-15, high nibbles 16-31; zero point 8.
void expand_q4_0(const uint8_t* __restrict block, float* __restrict out) {
  float scale = load_f16(block);
  const uint8_t* quants = block + 2;
  for (int i = 0; i < kSmallBlock / 2; ++i) {
    out[i] = static_cast<float>((quants[i] & 15) - 8) * scale;
    out[i + 16] = static_cast<float>((quants[i] >> 4) - 8) * scale;
  }
}

// f16 scale, f16 minimum, nibbles as in q4_0.
void expand_q4_1(const uint8_t* __restrict block, float* __restrict out) {
  float scale = load_f16(block);
  float minimum = load_f16(block + 2);
  const uint8_t* quants = block + 4;
  for (int i = 0; i < kSmallBlock / 2; ++i) {
    out[i] = static_cast<float>(quants[i] & 15) * scale + minimum;
    out[i + 16] = static_cast<float>(quants[i] >> 4) * scale + minimum;
  }
}

// The 32 five-bit values of q5_0 and q5_1: nibbles as in q4_0, bit i of `high_bits` on top of
// element i.
void unpack_5_bits(const uint8_t* quants, uint32_t high_bits, int32_t* values) {
  for (int i = 0; i < kSmallBlock / 2; ++i) {
    auto low = static_cast<int32_t>((high_bits >> i) & 1u);
    auto high = static_cast<int32_t>((high_bits >> (i + 16)) & 1u);
    values[i] = (quants[i] & 15) | (low << 4);
    values[i + 16] = (quants[i] >> 4) | (high << 4);
  }
}

// f16 scale, 32 high bits, 16 bytes of nibbles; zero point 16.
void expand_q5_0(const uint8_t* __restrict block, float* __restrict out) {
  float scale = load_f16(block);
  int32_t values[kSmallBlock];
  unpack_5_bits(block + 6, load_u32(block + 2), values);
  for (int i = 0; i < kSmallBlock; ++i) out[i] = static_cast<float>(values[i] - 16) * scale;
}

// f16 scale, f16 minimum, 32 high bits, 16 bytes of nibbles.
void expand_q5_1(const uint8_t* __restrict block, float* __restrict out) {
  float scale = load_f16(block);
  float minimum = load_f16(block + 2);
  int32_t values[kSmallBlock];
  unpack_5_bits(block + 8, load_u32(block + 4), values);
  for (int i = 0; i < kSmallBlock; ++i) out[i] = static_cast<float>(values[i]) * scale + minimum;
}

struct SubScale {
  float scale;
  float minimum;
};

// q4_k and q5_k start with f16 scale, f16 minimum and 12 bytes that hold eight six-bit scales and
// eight six-bit minima: bytes 0-3 and 4-7 the first four of each, bytes 8-11 the low nibbles of the
// last four, whose upper two bits are the upper two of bytes 0-3 and 4-7.
SubScale sub_scale(const uint8_t* block, int index) {
  const uint8_t* packed = block + 4;
  int scale = packed[index & 3];
  int minimum = packed[(index & 3) + 4];
  if (index < 4) {
    scale &= 63;
    minimum &= 63;
  } else {
    scale = (packed[index + 4] & 15) | ((scale >> 6) << 4);
    minimum = (packed[index + 4] >> 4) | ((minimum >> 6) << 4);
  }
  return {load_f16(block) * static_cast<float>(scale),
          load_f16(block + 2) * static_cast<float>(minimum)};
}

// 128 bytes of nibbles: 32 bytes hold 64 elements, the low nibbles first.
void expand_q4_k(const uint8_t* __restrict block, float* __restrict out) {
  const uint8_t* quants = block + 16;
  for (int group = 0; group < 4; ++group, quants += 32, out += 64) {
    SubScale low = sub_scale(block, 2 * group);
    SubScale high = sub_scale(block, 2 * group + 1);
    for (int i = 0; i < 32; ++i) {
      out[i] = low.scale * static_cast<float>(quants[i] & 15) - low.minimum;
      out[i + 32] = high.scale * static_cast<float>(quants[i] >> 4) - high.minimum;
    }
  }
}

// As q4_k with 32 bytes of fifth bits before the nibbles: bit s of byte i belongs to element i of
// sub-block s.
void expand_q5_k(const uint8_t* __restrict block, float* __restrict out) {
  const uint8_t* high_bits = block + 16;
  const uint8_t* quants = block + 48;
  for (int group = 0; group < 4; ++group, quants += 32, out += 64) {
    SubScale low = sub_scale(block, 2 * group);
    SubScale high = sub_scale(block, 2 * group + 1);
    for (int i = 0; i < 32; ++i) {
      int bits = high_bits[i] >> (2 * group);
      int first = (quants[i] & 15) | ((bits & 1) << 4);
      int second = (quants[i] >> 4) | ((bits & 2) << 3);
      out[i] = low.scale * static_cast<float>(first) - low.minimum;
      out[i + 32] = high.scale * static_cast<float>(second) - high.minimum;
    }
  }
}

// 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales (one for 16 elements),
// f16 scale; zero point 32. Each half of 128 elements is four runs of 32: low nibbles of 32 bytes
// and of the next 32, then their high nibbles; pair r of upper byte i belongs to run r.
void expand_q6_k(const uint8_t* __restrict block, float* __restrict out) {
  const uint8_t* scales = block + 192;
  float scale = load_f16(block + 208);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* upper = block + 128 + 32 * half;
    for (int run = 0; run < 4; ++run, out += 32) {
      const uint8_t* lower = block + 64 * half + 32 * (run & 1);
      int nibble_shift = run < 2 ? 0 : 4;
      float scale_of[2];
      for (int i = 0; i < 2; ++i) {
        scale_of[i] =
            scale * static_cast<float>(static_cast<int8_t>(scales[8 * half + 2 * run + i]));
      }
      for (int i = 0; i < 32; ++i) {
        int value = ((lower[i] >> nibble_shift) & 15) | (((upper[i] >> (2 * run)) & 3) << 4);
        out[i] = scale_of[i / 16] * static_cast<float>(value - 32);
      }
    }
  }
}

// 16 bytes of a scale (low nibble) and a minimum (high nibble) for 16 elements each, 64 bytes of
// two bits, f16 scale, f16 minimum. Each half of 128 elements is four runs of 32, which are the
// four bit pairs of 32 bytes.
void expand_q2_k(const uint8_t* __restrict block, float* __restrict out) {
  const float scale = load_f16(block + 80);
  const float minimum = load_f16(block + 82);
  for (int run = 0; run < 8; ++run) {
    const uint8_t* quants = block + 16 + 32 * (run / 4);
    for (int i = 0; i < 32; ++i) {
      const int packed = block[2 * run + i / 16];
      const float step = scale * static_cast<float>(packed & 15);
      const float least = minimum * static_cast<float>(packed >> 4);
      *out++ = step * static_cast<float>((quants[i] >> (2 * (run % 4))) & 3) - least;
    }
  }
}

// Sixteen six-bit scales in 12 bytes: low nibbles of the first eight bytes, then their high ones;
// the upper two bits of scale i are pair i / 4 of byte 8 + i % 4. Zero point 32.
int q3_k_scale(const uint8_t* packed, int index) {
  const int low = index < 8 ? packed[index] & 15 : packed[index - 8] >> 4;
  const int high = (packed[8 + index % 4] >> (2 * (index / 4))) & 3;
  return (low | (high << 4)) - 32;
}

// 32 bytes of third bits (bit r of byte i: element i of run r), 64 bytes of two bits as in q2_k, 12
// bytes of scales, f16 scale; zero point 4.
void expand_q3_k(const uint8_t* __restrict block, float* __restrict out) {
  const float scale = load_f16(block + 108);
  for (int run = 0; run < 8; ++run) {
    const uint8_t* quants = block + 32 + 32 * (run / 4);
    for (int i = 0; i < 32; ++i) {
      const int low = (quants[i] >> (2 * (run % 4))) & 3;
      const int quant = low - ((block[i] >> run & 1) != 0 ? 0 : 4);
      const int sub_scale = q3_k_scale(block + 96, 2 * run + i / 16);
      *out++ = scale * static_cast<float>(sub_scale) * static_cast<float>(quant);
    }
  }
}

// 16 bytes of nibbles as in q4_0 that stand for the values of a table.
void expand_table(const uint8_t* quants, const int8_t* table, float scale, float* out) {
  for (int i = 0; i < kSmallBlock / 2; ++i) {
    out[i] = scale * static_cast<float>(table[quants[i] & 15]);
    out[i + 16] = scale * static_cast<float>(table[quants[i] >> 4]);
  }
}

// f16 scale, nibbles.
void expand_iq4_nl(const uint8_t* __restrict block, float* __restrict out) {
  expand_table(block + 2, kNonLinear4, load_f16(block), out);
}

// f16 scale, eight pairs of upper bits of sub-scales, four bytes of their nibbles, then eight times
// 16 bytes of nibbles.
void expand_iq4_xs(const uint8_t* __restrict block, float* __restrict out) {
  for (int run = 0; run < 8; ++run, out += kSmallBlock) {
    const float scale = load_f16(block) * static_cast<float>(iq4_xs_scale(block, run));
    expand_table(block + 8 + 16 * run, kNonLinear4, scale, out);
  }
}

// Exponent, nibbles.
void expand_mxfp4(const uint8_t* __restrict block, float* __restrict out) {
  expand_table(block + 1, kMxfp4Halves, mxfp4_half_scale(block[0]), out);
}

float load_f32(const uint8_t* bytes) {
  return std::bit_cast<float>(load_u32(bytes));
}

// f32 scale, f32 minimum, nibbles as in q4_0.
void expand_affine4(const uint8_t* __restrict block, float* __restrict out) {
  const float scale = load_f32(block);
  const float minimum = load_f32(block + 4);
  const uint8_t* quants = block + 8;
  for (int i = 0; i < kSmallBlock / 2; ++i) {
    out[i] = static_cast<float>(quants[i] & 15) * scale + minimum;
    out[i + 16] = static_cast<float>(quants[i] >> 4) * scale + minimum;
  }
}

// f32 scale, f32 minimum, 32 unsigned bytes.
void expand_affine8(const uint8_t* __restrict block, float* __restrict out) {
  const float scale = load_f32(block);
  const float minimum = load_f32(block + 4);
  const uint8_t* quants = block + 8;
  for (int i = 0; i < kSmallBlock; ++i) out[i] = static_cast<float>(quants[i]) * scale + minimum;
}

// f32 scale, 32 codes.
void expand_fp8(const uint8_t* __restrict block, float* __restrict out) {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> values{};
    for (int code = 0; code < 256; ++code)
      values[static_cast<size_t>(code)] = float_from_e4m3(static_cast<uint8_t>(code));
    return values;
  }();
  const float scale = load_f32(block);
  for (int i = 0; i < kSmallBlock; ++i) out[i] = scale * table[block[4 + i]];
}

template <auto kExpand>
void expand_blocks(DType dtype, const uint8_t* bytes, std::span<float> out) {
  auto elements = static_cast<size_t>(traits(dtype).block_elements);
  auto stride = static_cast<size_t>(traits(dtype).block_bytes);
  for (size_t i = 0; i < out.size() / elements; ++i) {
    kExpand(bytes + i * stride, out.data() + i * elements);
  }
}

template <class Element, auto kConvert>
void convert_each(const uint8_t* bytes, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    Element element;
    std::memcpy(&element, bytes + i * sizeof element, sizeof element);
    out[i] = kConvert(element);
  }
}

float float_from_int(int32_t value) {
  return static_cast<float>(value);
}

}  // namespace

float float_from_e4m3(uint8_t code) {
  const int exponent = code >> 3 & 15;
  const int fraction = code & 7;
  if (exponent == 15 && fraction == 7) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(fraction), -9)
                              : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

float mxfp4_half_scale(uint8_t exponent) {
  // 2^(exponent - 128); the two smallest are no normal floats.
  return std::bit_cast<float>(exponent < 2 ? 0x00200000u << exponent
                                           : static_cast<uint32_t>(exponent - 1) << 23);
}

int iq4_xs_scale(const uint8_t* block, int run) {
  const int low = (block[4 + run / 2] >> (4 * (run % 2))) & 15;
  const int high = (load_u16(block + 2) >> (2 * run)) & 3;
  return (low | (high << 4)) - 32;
}

void dequantize(DType dtype, std::span<const std::byte> bytes, std::span<float> out) {
  check(out.size() % static_cast<size_t>(traits(dtype).block_elements) == 0,
        "whole blocks are dequantised");
  check(bytes.size() >= bytes_of(dtype, static_cast<int64_t>(out.size())),
        "as many bytes as the elements need");
  if (out.empty()) return;
  const auto* source = reinterpret_cast<const uint8_t*>(bytes.data());
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out.data(), source, out.size_bytes());
      return;
    case DType::kF16:
      return convert_each<uint16_t, float_from_f16>(source, out);
    case DType::kBF16:
      return convert_each<uint16_t, float_from_bf16>(source, out);
    case DType::kI8:
      return convert_each<int8_t, float_from_int>(source, out);
    case DType::kI32:
      return convert_each<int32_t, float_from_int>(source, out);
    case DType::kQ8_0:
      return expand_blocks<expand_q8_0>(dtype, source, out);
    case DType::kQ4_0:
      return expand_blocks<expand_q4_0>(dtype, source, out);
    case DType::kQ4_1:
      return expand_blocks<expand_q4_1>(dtype, source, out);
    case DType::kQ5_0:
      return expand_blocks<expand_q5_0>(dtype, source, out);
    case DType::kQ5_1:
      return expand_blocks<expand_q5_1>(dtype, source, out);
    case DType::kQ4_K:
      return expand_blocks<expand_q4_k>(dtype, source, out);
    case DType::kQ5_K:
      return expand_blocks<expand_q5_k>(dtype, source, out);
    case DType::kQ6_K:
      return expand_blocks<expand_q6_k>(dtype, source, out);
    case DType::kQ2_K:
      return expand_blocks<expand_q2_k>(dtype, source, out);
    case DType::kQ3_K:
      return expand_blocks<expand_q3_k>(dtype, source, out);
    case DType::kIQ4_NL:
      return expand_blocks<expand_iq4_nl>(dtype, source, out);
    case DType::kIQ4_XS:
      return expand_blocks<expand_iq4_xs>(dtype, source, out);
    case DType::kMXFP4:
      return expand_blocks<expand_mxfp4>(dtype, source, out);
    case DType::kAffine4:
      return expand_blocks<expand_affine4>(dtype, source, out);
    case DType::kAffine8:
      return expand_blocks<expand_affine8>(dtype, source, out);
    case DType::kFp8:
      return expand_blocks<expand_fp8>(dtype, source, out);
  }
}

bool all_finite(std::span<const float> values) {
  // No early exit, so that it vectorises.
  constexpr uint32_t kInfinity = 0x7f800000u;
  uint32_t not_finite = 0;
  for (float value : values) {
    not_finite |= (std::bit_cast<uint32_t>(value) & kInfinity) == kInfinity ? 1u : 0u;
  }
  return not_finite == 0;
}

}  // namespace droidspeak
