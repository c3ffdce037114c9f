#include "store/tiers/int8_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "tensor/half.h"

namespace droidspeak {
namespace {

float load(DType dtype, const std::byte* bytes, size_t index) {
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, bytes + index * 4, 4);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, bytes + index * 2, 2);
  return dtype == DType::kF16 ? float_from_f16(bits) : float_from_bf16(bits);
}

void store(DType dtype, std::byte* bytes, size_t index, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(bytes + index * 4, &value, 4);
    return;
  }
  uint16_t bits = dtype == DType::kF16 ? f16_from_float(value) : bf16_from_float(value);
  std::memcpy(bytes + index * 2, &bits, 2);
}

// The format by its definition, one element at a time.
std::vector<std::byte> reference_round_trip(const KvLayout& layout,
                                            const std::vector<std::byte>& values) {
  std::vector<std::byte> restored(values.size());
  auto dim = static_cast<size_t>(layout.head_dim);
  size_t head_elements = dim * kBlockTokens;
  for (size_t head = 0; head < 2 * static_cast<size_t>(layout.num_kv_heads); ++head) {
    for (size_t c = 0; c < dim; ++c) {
      float largest = 0;
      for (size_t t = 0; t < kBlockTokens; ++t) {
        size_t index = head * head_elements + t * dim + c;
        largest = std::max(largest, std::abs(load(layout.dtype, values.data(), index)));
      }
      float scale = largest / 127.0f;
      float inverse = scale > 0 && std::isfinite(1.0f / scale) ? 1.0f / scale : 0.0f;
      if (inverse == 0.0f) scale = 0.0f;
      for (size_t t = 0; t < kBlockTokens; ++t) {
        size_t index = head * head_elements + t * dim + c;
        auto code =
            static_cast<int>(std::nearbyint(load(layout.dtype, values.data(), index) * inverse));
        store(layout.dtype, restored.data(), index, scale * static_cast<float>(code));
      }
    }
  }
  return restored;
}

class Int8Codec : public testing::TestWithParam<DType> {
 protected:
  std::vector<std::byte> random_values(float spread) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<std::byte> values(layout_.layer_bytes());
    size_t count = values.size() / bytes_of(layout_.dtype, 1);
    for (size_t i = 0; i < count; ++i) {
      float channel = std::exp2(static_cast<float>(i % 24) - 12.0f);  // channels differ in size
      store(layout_.dtype, values.data(), i, normal(random) * channel * spread);
    }
    return values;
  }

  KvLayout layout_{.num_layers = 4, .num_kv_heads = 3, .head_dim = 40, .dtype = GetParam()};
};

INSTANTIATE_TEST_SUITE_P(DTypes,
                         Int8Codec,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& param) { return std::string(name_of(param.param)); });

TEST_P(Int8Codec, EqualsTheDefinition) {
  for (float spread : {1.0f, 1e-4f, 0.0f, 1e-7f}) {
    std::vector<std::byte> values = random_values(spread);
    std::vector<std::byte> stored(int8_bytes(layout_), std::byte{0x7e});  // used before
    std::vector<std::byte> restored(values.size());
    ASSERT_TRUE(encode_int8(layout_, values, stored));
    decode_int8(layout_, stored, restored);
    EXPECT_TRUE(restored == reference_round_trip(layout_, values)) << "spread " << spread;
  }
}

TEST_P(Int8Codec, LosesAtMostHalfAStepOfEachChannel) {
  std::vector<std::byte> values = random_values(1.0f);
  std::vector<std::byte> stored(int8_bytes(layout_));
  std::vector<std::byte> restored(values.size());
  ASSERT_TRUE(encode_int8(layout_, values, stored));
  decode_int8(layout_, stored, restored);
  auto dim = static_cast<size_t>(layout_.head_dim);
  std::vector<float> scales(2 * 3 * dim);
  std::memcpy(scales.data(), stored.data(), scales.size() * sizeof(float));
  size_t count = values.size() / bytes_of(layout_.dtype, 1);
  for (size_t i = 0; i < count; ++i) {
    float before = load(layout_.dtype, values.data(), i);
    float after = load(layout_.dtype, restored.data(), i);
    float scale = scales[i / (dim * kBlockTokens) * dim + i % dim];
    EXPECT_NEAR(before, after, 0.5f * scale + 0.01f * std::abs(before));
  }
}

TEST_P(Int8Codec, RefusesValuesThatAreNotFinite) {
  for (float wrong : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    std::vector<std::byte> values = random_values(1.0f);
    store(layout_.dtype, values.data(), 777, wrong);
    std::vector<std::byte> stored(int8_bytes(layout_));
    EXPECT_FALSE(encode_int8(layout_, values, stored));
  }
}

TEST(Int8Sizes, FitFloatLayersOnly) {
  KvLayout layout{.num_layers = 30, .num_kv_heads = 3, .head_dim = 64, .dtype = DType::kF16};
  EXPECT_TRUE(int8_can_hold(layout, layout.layer_bytes()));
  EXPECT_FALSE(int8_can_hold(layout, layout.layer_bytes() - 1));
  EXPECT_LT(int8_bytes(layout), layout.layer_bytes() * 6 / 10);
  layout.dtype = DType::kI8;
  EXPECT_FALSE(int8_can_hold(layout, layout.layer_bytes()));
  EXPECT_FALSE(int8_can_hold(KvLayout{}, 0));
}

}  // namespace
}  // namespace droidspeak
