#include "store/tiers/int8_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "tensor/half.h"

namespace droidspeak {
namespace {

// Conversions without branches, for finite values only, so that compilers turn the loops over
// channels into vector code. is_finite() tells, on the stored bits, whether they may be used.
struct F32 {
  using Bits = float;

  static bool is_finite(Bits bits) {
    return (std::bit_cast<uint32_t>(bits) & 0x7f800000u) != 0x7f800000u;
  }

  static float load(Bits bits) { return bits; }

  static Bits store(float value) { return value; }
};

struct F16 {
  using Bits = uint16_t;

  static bool is_finite(Bits bits) { return (bits & 0x7c00u) != 0x7c00u; }

  static float load(Bits bits) {
    uint32_t magnitude = bits & 0x7fffu;
    float value = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | (bits & 0x8000u) << 16);
  }

  static Bits store(float value) {
    uint32_t bits = std::bit_cast<uint32_t>(value);
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t normal = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    uint32_t subnormal =
        std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t is_subnormal =
        0u - static_cast<uint32_t>(magnitude < 0x38800000u);  // all ones or none
    uint32_t half = (subnormal & is_subnormal) | (normal & ~is_subnormal);
    return static_cast<uint16_t>(half | (bits >> 16 & 0x8000u));
  }
};

struct BF16 {
  using Bits = uint16_t;

  static bool is_finite(Bits bits) { return (bits & 0x7f80u) != 0x7f80u; }

  static float load(Bits bits) { return float_from_bf16(bits); }

  static Bits store(float value) {
    uint32_t bits = std::bit_cast<uint32_t>(value);
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  }
};

// Nearest integer, ties to even, for |value| < 2^22.
int32_t rounded(float value) {
  constexpr float kShift = 0x1.8p23f;
  return static_cast<int32_t>(std::bit_cast<uint32_t>(value + kShift) -
                              std::bit_cast<uint32_t>(kShift));
}

template <class Type>
bool all_finite(std::span<const typename Type::Bits> values) {
  uint32_t num_wrong = 0;
  for (auto value : values) num_wrong += Type::is_finite(value) ? 0u : 1u;
  return num_wrong == 0;
}

// The largest value of each channel becomes 127. A scale that has no finite inverse belongs to
// values too small to matter: they become zero.
void finish_scales(std::span<float> scales, std::span<float> inverses) {
  for (size_t c = 0; c < scales.size(); ++c) {
    float scale = scales[c] / 127.0f;
    float inverse = 1.0f / scale;
    bool is_usable = std::isfinite(inverse);
    scales[c] = is_usable ? scale : 0.0f;
    inverses[c] = is_usable ? inverse : 0.0f;
  }
}

// One head of K or V.
//   values: [kBlockTokens, head_dim], scales: [head_dim], codes: [kBlockTokens, head_dim]
template <class Type>
bool encode_head(std::span<const typename Type::Bits> values,
                 std::span<float> scales,
                 int8_t* codes) {
  if (!all_finite<Type>(values)) return false;
  size_t head_dim = scales.size();
  std::fill(scales.begin(), scales.end(), 0.0f);
  for (size_t row = 0; row < values.size(); row += head_dim) {
    for (size_t c = 0; c < head_dim; ++c) {
      scales[c] = std::max(scales[c], std::abs(Type::load(values[row + c])));
    }
  }
  std::vector<float> inverses(head_dim);
  finish_scales(scales, inverses);
  for (size_t row = 0; row < values.size(); row += head_dim) {
    for (size_t c = 0; c < head_dim; ++c) {
      float code = Type::load(values[row + c]) * inverses[c];  // within rounding of [-127, 127]
      codes[row + c] = static_cast<int8_t>(rounded(code));
    }
  }
  return true;
}

template <class Type>
void decode_head(std::span<const float> scales,
                 const int8_t* codes,
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
  bool is_float =
      layout.dtype == DType::kF32 || layout.dtype == DType::kF16 || layout.dtype == DType::kBF16;
  return is_float && layout.num_kv_heads > 0 && layout.head_dim > 0 &&
         bytes == layout.layer_bytes();
}

size_t int8_bytes(const KvLayout& layout) {
  Shape shape(layout);
  return shape.scale_bytes() + shape.num_heads * shape.head_elements;
}

bool encode_int8(const KvLayout& layout,
                 std::span<const std::byte> values,
                 std::span<std::byte> stored) {
  check(int8_can_hold(layout, values.size()) && stored.size() == int8_bytes(layout),
        "sizes fit the layout");
  Shape shape(layout);
  if (layout.dtype == DType::kF16) return encode<F16>(shape, values.data(), stored.data());
  if (layout.dtype == DType::kBF16) return encode<BF16>(shape, values.data(), stored.data());
  return encode<F32>(shape, values.data(), stored.data());
}

void decode_int8(const KvLayout& layout,
                 std::span<const std::byte> stored,
                 std::span<std::byte> values) {
  check(int8_can_hold(layout, values.size()) && stored.size() == int8_bytes(layout),
        "sizes fit the layout");
  Shape shape(layout);
  if (layout.dtype == DType::kF16) return decode<F16>(shape, stored.data(), values.data());
  if (layout.dtype == DType::kBF16) return decode<BF16>(shape, stored.data(), values.data());
  decode<F32>(shape, stored.data(), values.data());
}

}  // namespace droidspeak
