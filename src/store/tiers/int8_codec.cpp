#include "store/tiers/int8_codec.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "tensor/half.h"

namespace droidspeak {
namespace {

struct F32 {
  using Bits = float;
  static float load(Bits bits) { return bits; }
  static Bits store(float value) { return value; }
};

struct F16 {
  using Bits = uint16_t;
  static float load(Bits bits) { return float_from_f16(bits); }
  static Bits store(float value) { return f16_from_float(value); }
};

struct BF16 {
  using Bits = uint16_t;
  static float load(Bits bits) { return float_from_bf16(bits); }
  static Bits store(float value) { return bf16_from_float(value); }
};

// One head of K or V.
//   values: [kBlockTokens, head_dim], scales: [head_dim], codes: [kBlockTokens, head_dim]
template <class Type>
bool encode_head(std::span<const typename Type::Bits> values, std::span<float> scales,
                 int8_t* codes) {
  size_t head_dim = scales.size();
  std::fill(scales.begin(), scales.end(), 0.0f);
  for (size_t i = 0; i < values.size(); ++i) {
    float magnitude = std::abs(Type::load(values[i]));
    if (!std::isfinite(magnitude)) return false;
    float& scale = scales[i % head_dim];
    scale = std::max(scale, magnitude);
  }
  std::vector<float> inverses(head_dim);
  for (size_t c = 0; c < head_dim; ++c) {
    scales[c] /= 127.0f;
    inverses[c] = scales[c] > 0.0f ? 1.0f / scales[c] : 0.0f;
    if (!std::isfinite(inverses[c])) {  // too small for its reciprocal: nothing is lost by zero
      scales[c] = 0.0f;
      inverses[c] = 0.0f;
    }
  }
  for (size_t i = 0; i < values.size(); ++i) {
    float code = std::nearbyint(Type::load(values[i]) * inverses[i % head_dim]);
    codes[i] = static_cast<int8_t>(std::clamp(code, -127.0f, 127.0f));
  }
  return true;
}

template <class Type>
void decode_head(std::span<const float> scales, const int8_t* codes,
                 std::span<typename Type::Bits> values) {
  size_t head_dim = scales.size();
  for (size_t row = 0; row < values.size(); row += head_dim) {
    for (size_t c = 0; c < head_dim; ++c) {
      values[row + c] = Type::store(scales[c] * static_cast<float>(codes[row + c]));
    }
  }
}

struct Shape {
  explicit Shape(const KvLayout& layout)
      : num_heads(2 * static_cast<size_t>(layout.num_kv_heads)),  // of K, then of V
        head_dim(static_cast<size_t>(layout.head_dim)),
        head_elements(head_dim * kBlockTokens) {}
  size_t scale_bytes() const { return num_heads * head_dim * sizeof(float); }

  size_t num_heads;
  size_t head_dim;
  size_t head_elements;
};

template <class Type>
bool encode(const Shape& shape, const std::byte* values, std::byte* stored) {
  auto* scales = reinterpret_cast<float*>(stored);
  auto* codes = reinterpret_cast<int8_t*>(stored + shape.scale_bytes());
  auto* elements = reinterpret_cast<const typename Type::Bits*>(values);
  for (size_t head = 0; head < shape.num_heads; ++head) {
    std::span head_values(elements + head * shape.head_elements, shape.head_elements);
    std::span head_scales(scales + head * shape.head_dim, shape.head_dim);
    if (!encode_head<Type>(head_values, head_scales, codes + head * shape.head_elements)) {
      return false;
    }
  }
  return true;
}

template <class Type>
void decode(const Shape& shape, const std::byte* stored, std::byte* values) {
  auto* scales = reinterpret_cast<const float*>(stored);
  auto* codes = reinterpret_cast<const int8_t*>(stored + shape.scale_bytes());
  auto* elements = reinterpret_cast<typename Type::Bits*>(values);
  for (size_t head = 0; head < shape.num_heads; ++head) {
    decode_head<Type>(std::span(scales + head * shape.head_dim, shape.head_dim),
                      codes + head * shape.head_elements,
                      std::span(elements + head * shape.head_elements, shape.head_elements));
  }
}

}  // namespace

bool int8_can_hold(const KvLayout& layout, size_t bytes) {
  bool is_float = layout.dtype == DType::kF32 || layout.dtype == DType::kF16 ||
                  layout.dtype == DType::kBF16;
  return is_float && layout.num_kv_heads > 0 && layout.head_dim > 0 &&
         bytes == layout.layer_bytes();
}

size_t int8_bytes(const KvLayout& layout) {
  Shape shape(layout);
  return shape.scale_bytes() + shape.num_heads * shape.head_elements;
}

bool encode_int8(const KvLayout& layout, std::span<const std::byte> values,
                 std::span<std::byte> stored) {
  check(int8_can_hold(layout, values.size()) && stored.size() == int8_bytes(layout),
        "sizes fit the layout");
  Shape shape(layout);
  if (layout.dtype == DType::kF16) return encode<F16>(shape, values.data(), stored.data());
  if (layout.dtype == DType::kBF16) return encode<BF16>(shape, values.data(), stored.data());
  return encode<F32>(shape, values.data(), stored.data());
}

void decode_int8(const KvLayout& layout, std::span<const std::byte> stored,
                 std::span<std::byte> values) {
  check(int8_can_hold(layout, values.size()) && stored.size() == int8_bytes(layout),
        "sizes fit the layout");
  Shape shape(layout);
  if (layout.dtype == DType::kF16) return decode<F16>(shape, stored.data(), values.data());
  if (layout.dtype == DType::kBF16) return decode<BF16>(shape, stored.data(), values.data());
  decode<F32>(shape, stored.data(), values.data());
}

}  // namespace droidspeak
