#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tensor/dequantize.h"
#include "tensor/dtype.h"
#include "tensor/half.h"

namespace droidspeak {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr DType kAllTypes[] = {
    DType::kF32,     DType::kF16,     DType::kBF16, DType::kI8,     DType::kI32,    DType::kQ8_0,
    DType::kQ4_0,    DType::kQ4_1,    DType::kQ5_0, DType::kQ5_1,   DType::kQ4_K,   DType::kQ5_K,
    DType::kQ6_K,    DType::kQ2_K,    DType::kQ3_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4,
    DType::kAffine4, DType::kAffine8, DType::kFp8};

// By the definition of IEEE half: 1 sign, 5 exponent, 10 fraction bits.
float f16_by_definition(uint16_t bits) {
  int exponent = (bits >> 10) & 31;
  int fraction = bits & 1023;
  float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                  : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  if (exponent == 31) magnitude = fraction == 0 ? kInfinity : std::nanf("");
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// Rounds to a multiple of the spacing of halves around the value; ties to even.
float rounded_to_f16(float value) {
  if (!std::isfinite(value)) return value;
  int exponent = std::max(std::ilogb(value == 0 ? 1e-30f : value), -14);
  float spacing = std::ldexp(1.0f, exponent - 10);
  float rounded = std::nearbyint(value / spacing) * spacing;
  return std::abs(rounded) > 65504.0f ? std::copysign(kInfinity, value) : rounded;
}

TEST(Half, EveryF16BecomesTheFloatOfItsDefinition) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    float value = float_from_f16(static_cast<uint16_t>(bits));
    float expected = f16_by_definition(static_cast<uint16_t>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(expected)) << bits;
    }
  }
}

TEST(Half, EveryF16AndBf16SurvivesTheWayThroughFloat) {
  for (uint32_t i = 0; i < 65536; ++i) {
    auto bits = static_cast<uint16_t>(i);
    if (!std::isnan(float_from_f16(bits))) {
      ASSERT_EQ(f16_from_float(float_from_f16(bits)), bits);
    }
    if (!std::isnan(float_from_bf16(bits))) {
      ASSERT_EQ(bf16_from_float(float_from_bf16(bits)), bits);
    }
  }
}

TEST(Half, FloatsRoundToTheNearestF16TiesToEven) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> exponent(-30, 18);
  for (int i = 0; i < 200000; ++i) {
    float value = std::exp2(exponent(random)) * (i % 2 == 0 ? 1.0f : -1.0f);
    ASSERT_EQ(float_from_f16(f16_from_float(value)), rounded_to_f16(value)) << value;
  }
  for (uint16_t bits = 0; bits < 0x7bff; ++bits) {  // half way between neighbours
    float middle = 0.5f * (float_from_f16(bits) + float_from_f16(static_cast<uint16_t>(bits + 1)));
    ASSERT_EQ(f16_from_float(middle), bits % 2 == 0 ? bits : bits + 1) << bits;
  }
}

TEST(Half, OverflowBecomesInfinityAndNanStaysNan) {
  EXPECT_EQ(f16_from_float(65519.996f), 0x7bff);
  EXPECT_EQ(f16_from_float(65520.0f), 0x7c00);
  EXPECT_EQ(f16_from_float(-kInfinity), 0xfc00);
  EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_TRUE(std::isnan(float_from_f16(f16_from_float(std::nanf("")))));
  EXPECT_TRUE(std::isnan(float_from_bf16(bf16_from_float(std::bit_cast<float>(0x7f800001u)))));
}

TEST(Half, FloatsRoundToTheNearestBf16TiesToEven) {
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x3f808000u)), 0x3f80);
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x3f807fffu)), 0x3f80);
}

TEST(DTypeTest, SizesFollowFromTheBlocks) {
  EXPECT_EQ(name_of(DType::kQ4_1), "q4_1");
  EXPECT_EQ(name_of(DType::kQ6_K), "q6_k");
  EXPECT_EQ(bytes_of(DType::kF32, 10), 40u);
  EXPECT_EQ(bytes_of(DType::kQ8_0, 64), 68u);
  EXPECT_EQ(bytes_of(DType::kQ6_K, 512), 420u);
  EXPECT_FALSE(is_block_format(DType::kBF16));
  EXPECT_TRUE(is_block_format(DType::kQ5_1));
}

int bits_at(const uint8_t* bytes, int index, int mask, int shift = 0) {
  return (bytes[index] >> shift) & mask;
}

// Element `i` of a block of 32, from the layout's definition.
float small_block_element(DType dtype, const uint8_t* block, int i) {
  auto f16_at = [&](int position) {
    return f16_by_definition(static_cast<uint16_t>(block[position] | block[position + 1] << 8));
  };
  auto nibble = [&](int start) { return bits_at(block, start + i % 16, 15, i / 16 * 4); };
  auto fifth = [&](int start) { return bits_at(block, start + i / 8, 1, i % 8) * 16; };
  float scale = f16_at(0);
  switch (dtype) {
    case DType::kQ8_0:
      return scale * static_cast<float>(static_cast<int8_t>(block[2 + i]));
    case DType::kQ4_0:
      return scale * static_cast<float>(nibble(2) - 8);
    case DType::kQ4_1:
      return scale * static_cast<float>(nibble(4)) + f16_at(2);
    case DType::kQ5_0:
      return scale * static_cast<float>(nibble(6) + fifth(2) - 16);
    default:
      return scale * static_cast<float>(nibble(8) + fifth(4)) + f16_at(2);  // q5_1
  }
}

// Element `i` of a block of 256.
float super_block_element(DType dtype, const uint8_t* block, int i) {
  auto f16_at = [&](int position) {
    return f16_by_definition(static_cast<uint16_t>(block[position] | block[position + 1] << 8));
  };
  if (dtype == DType::kQ6_K) {
    int half = i / 128, within = i % 128, run = within / 32, lane = within % 32;
    int low = bits_at(block, half * 64 + run % 2 * 32 + lane, 15, run / 2 * 4);
    int high = bits_at(block, 128 + half * 32 + lane, 3, run * 2);
    auto sub_scale = static_cast<int8_t>(block[192 + i / 16]);
    return f16_at(208) * static_cast<float>(sub_scale) * static_cast<float>(low + high * 16 - 32);
  }
  int sub = i / 32, lane = i % 32;
  const uint8_t* packed = block + 4;
  int scale = sub < 4 ? packed[sub] % 64 : packed[sub + 4] % 16 + packed[sub - 4] / 64 * 16;
  int minimum = sub < 4 ? packed[sub + 4] % 64 : packed[sub + 4] / 16 + packed[sub] / 64 * 16;
  int quants = dtype == DType::kQ4_K ? 16 : 48;
  int value = bits_at(block, quants + sub / 2 * 32 + lane, 15, sub % 2 * 4);
  if (dtype == DType::kQ5_K) value += bits_at(block, 16 + lane, 1, sub) * 16;
  return f16_at(0) * static_cast<float>(scale) * static_cast<float>(value) -
         f16_at(2) * static_cast<float>(minimum);
}

// Random bytes; only exponents of scales are tamed, so that all values are finite.
std::vector<uint8_t> random_blocks(DType dtype, int num_blocks, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(static_cast<size_t>(num_blocks * traits(dtype).block_bytes));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  for (int block = 0; block < num_blocks; ++block) {
    uint8_t* start = bytes.data() + block * traits(dtype).block_bytes;
    for (int high_byte : {1, 3, 209}) {
      if (high_byte < traits(dtype).block_bytes) start[high_byte] &= 0xbf;
    }
  }
  return bytes;
}

class DequantizeBlocks : public testing::TestWithParam<DType> {};

TEST_P(DequantizeBlocks, EqualsTheDefinitionElementByElement) {
  DType dtype = GetParam();
  int elements = traits(dtype).block_elements;
  constexpr int kNumBlocks = 50;
  std::vector<uint8_t> bytes = random_blocks(dtype, kNumBlocks, 7);
  std::vector<float> values(static_cast<size_t>(kNumBlocks * elements));
  dequantize(dtype, std::as_bytes(std::span(bytes)), values);
  for (int i = 0; i < kNumBlocks * elements; ++i) {
    const uint8_t* block = bytes.data() + i / elements * traits(dtype).block_bytes;
    float expected = elements == 32 ? small_block_element(dtype, block, i % elements)
                                    : super_block_element(dtype, block, i % elements);
    ASSERT_EQ(values[static_cast<size_t>(i)], expected) << "element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(AllFormats,
                         DequantizeBlocks,
                         testing::Values(DType::kQ8_0,
                                         DType::kQ4_0,
                                         DType::kQ4_1,
                                         DType::kQ5_0,
                                         DType::kQ5_1,
                                         DType::kQ4_K,
                                         DType::kQ5_K,
                                         DType::kQ6_K),
                         [](const auto& test) { return std::string(name_of(test.param)); });

template <class T>
std::vector<float> dequantized(DType dtype, const std::vector<T>& source) {
  std::vector<float> values(source.size());
  dequantize(dtype, std::as_bytes(std::span(source)), values);
  return values;
}

TEST(Dequantize, PlainTypesBecomeTheFloatsTheyStandFor) {
  EXPECT_EQ(dequantized<float>(DType::kF32, {1.5f, -2.0f}), (std::vector<float>{1.5f, -2.0f}));
  EXPECT_EQ(dequantized<uint16_t>(DType::kF16, {0x3c00, 0xc100, 0x0001}),
            (std::vector<float>{1.0f, -2.5f, 0x1p-24f}));
  EXPECT_EQ(dequantized<uint16_t>(DType::kBF16, {0x3f80, 0xc020}),
            (std::vector<float>{1.0f, -2.5f}));
  EXPECT_EQ(dequantized<int8_t>(DType::kI8, {-128, 127}), (std::vector<float>{-128, 127}));
  EXPECT_EQ(dequantized<int32_t>(DType::kI32, {-70000, 5}), (std::vector<float>{-70000, 5}));
}

TEST(Dequantize, EveryF16OfALongArrayEqualsTheScalarConversion) {
  std::vector<uint16_t> source(65536);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint16_t>(i);
  std::vector<float> values = dequantized(DType::kF16, source);
  for (size_t i = 0; i < source.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(values[i]),
              std::bit_cast<uint32_t>(float_from_f16(source[i])));
  }
}

TEST(Dequantize, ReadsFromAnyAlignment) {
  for (DType dtype : kAllTypes) {
    std::vector<uint8_t> bytes = random_blocks(dtype, 8, 3);
    std::vector<float> aligned(static_cast<size_t>(8 * traits(dtype).block_elements));
    std::vector<float> shifted = aligned;
    dequantize(dtype, std::as_bytes(std::span(bytes)), aligned);
    bytes.insert(bytes.begin(), 0);
    dequantize(dtype, std::as_bytes(std::span(bytes)).subspan(1), shifted);
    EXPECT_EQ(std::memcmp(aligned.data(), shifted.data(), aligned.size() * sizeof(float)), 0)
        << name_of(dtype);
  }
}

TEST(Dequantize, Fp8IsItsScaleTimesWhatCodesStandFor) {
  const float scale = 0.375f;
  std::vector<std::byte> bytes(8 * 36);
  std::vector<float> expected;
  for (int i = 0; i < 256; ++i) {
    std::byte* block = bytes.data() + i / 32 * 36;
    std::memcpy(block, &scale, sizeof scale);
    const auto code = static_cast<uint8_t>(i % 128 == 127 ? 0 : i);  // all ones is no number
    block[4 + i % 32] = static_cast<std::byte>(code);
    expected.push_back(scale * float_from_e4m3(code));
  }
  std::vector<float> values(256);
  dequantize(DType::kFp8, bytes, values);
  EXPECT_EQ(values, expected);
}

TEST(Dequantize, NothingFromNothing) {
  for (DType dtype : kAllTypes) dequantize(dtype, {}, {});
}

TEST(DequantizeDeathTest, RefusesPartsOfBlocksAndMissingBytes) {
  std::vector<std::byte> bytes(34);
  std::vector<float> values(64);
  EXPECT_DEATH(dequantize(DType::kQ8_0, bytes, std::span(values).first(31)), "whole blocks");
  EXPECT_DEATH(dequantize(DType::kQ8_0, bytes, values), "as many bytes");
}

TEST(AllFinite, FindsTheOneValueThatIsNot) {
  std::vector<float> values(1000, std::numeric_limits<float>::max());
  EXPECT_TRUE(all_finite(values));
  EXPECT_TRUE(all_finite({}));
  for (float bad : {kInfinity, -kInfinity, std::nanf(""), -std::nanf("")}) {
    values[997] = bad;
    EXPECT_FALSE(all_finite(values));
    values[997] = -0.0f;
  }
  EXPECT_TRUE(all_finite(values));
}

}  // namespace
}  // namespace droidspeak
