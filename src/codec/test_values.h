// K/V that looks like a model's: channels of their own mean and size, K turned by RoPE, a first
// token unlike the others.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "codec/learn_tables.h"
#include "codec/rows.h"

namespace droidspeak {

inline KvLayout layout_of(int32_t heads, int32_t dim, DType dtype) {
  return {.num_layers = 2, .num_kv_heads = heads, .head_dim = dim, .dtype = dtype};
}

inline std::vector<float> test_frequencies(size_t pairs) {
  std::vector<float> frequencies(pairs);
  for (size_t i = 0; i < pairs; ++i)
    frequencies[i] = std::pow(10000.0f, -static_cast<float>(i) / static_cast<float>(pairs));
  return frequencies;
}

inline void put_element(DType dtype, std::vector<std::byte>& values, size_t index, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(values.data() + index * 4, &value, 4);
    return;
  }
  uint16_t bits = dtype == DType::kF16 ? f16_from_float(value) : bf16_from_float(value);
  std::memcpy(values.data() + index * 2, &bits, 2);
}

// Whole blocks of one layer, for the label's layer and position.
inline std::vector<std::byte> test_values(const KvLayout& layout,
                                          const std::vector<float>& frequencies,
                                          const PieceLabel& label,
                                          size_t num_blocks,
                                          uint32_t seed) {
  std::vector<std::byte> values(num_blocks * layout.layer_bytes());
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  auto dim = static_cast<size_t>(layout.head_dim);
  size_t pairs = frequencies.size();
  std::vector<float> head_values(dim);
  for (size_t row = 0; row < num_blocks * kBlockTokens; ++row) {
    for (KvHalf half : {KvHalf::kKeys, KvHalf::kValues}) {
      for (size_t head = 0; head < static_cast<size_t>(layout.num_kv_heads); ++head) {
        for (size_t c = 0; c < dim; ++c) {
          auto id = static_cast<float>(head * dim + c + static_cast<size_t>(label.layer));
          float size = std::exp2(std::sin(id));
          float mean = half == KvHalf::kKeys ? 4.0f * std::cos(id) : 0.0f;
          head_values[c] = mean + size * normal(random);
          if (label.first_position + row == 0) head_values[c] *= 20;
        }
        size_t first = element_of(layout, half, row, head);
        for (size_t i = 0; half == KvHalf::kKeys && i < pairs; ++i) {
          float angle = frequencies[i] * static_cast<float>(label.first_position + row);
          float x = head_values[i];
          float y = head_values[pairs + i];
          head_values[i] = x * std::cos(angle) - y * std::sin(angle);
          head_values[pairs + i] = y * std::cos(angle) + x * std::sin(angle);
        }
        for (size_t c = 0; c < dim; ++c)
          put_element(layout.dtype, values, first + c, head_values[c]);
      }
    }
  }
  return values;
}

// Every seventh channel sixteen times as fine as usual: its values spread over a hundred steps.
inline std::vector<float> fine_factors(const KvLayout& layout) {
  std::vector<float> factors(num_step_factors(layout), 1.0f);
  for (size_t i = 0; i < factors.size(); i += 7) factors[i] = 1.0f / 16;
  return factors;
}

// Tables for such values.
inline CodecTables test_tables(const KvLayout& layout,
                               const std::vector<float>& frequencies,
                               const std::vector<int32_t>& unturned_layers = {},
                               std::span<const float> factors = {}) {
  std::vector<std::vector<std::byte>> kept;
  std::vector<KvSample> samples;
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    PieceLabel label{layer, 0};
    bool is_turned = !std::ranges::binary_search(unturned_layers, layer);
    kept.push_back(
        test_values(layout, is_turned ? frequencies : std::vector<float>{}, label, 6, 11));
    samples.push_back({label, kept.back()});
  }
  return *learn_tables(layout, {frequencies, unturned_layers}, samples, {.factors = factors});
}

}  // namespace droidspeak
