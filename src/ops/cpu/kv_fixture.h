// A small paged cache for tests, with sequences whose blocks lie out of order.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "kv/kv_cache.h"
#include "ops/cpu/reference.h"
#include "ops/ops.h"
#include "tensor/dequantize.h"

namespace droidspeak::cpu {

class KvFixture {
 public:
  KvFixture(Device& device, DType dtype, int32_t num_kv_heads, int32_t head_dim, int32_t num_blocks)
      : layout_{.num_layers = 1,
                .num_kv_heads = num_kv_heads,
                .head_dim = head_dim,
                .dtype = dtype},
        cache_(device, layout_, static_cast<size_t>(num_blocks) * layout_.block_bytes()) {
    for (int32_t i = 0; i < num_blocks; ++i) free_.push_back(i);
    std::shuffle(free_.begin(), free_.end(), random_);
  }

  KvLayerView view() const { return cache_.layer(0); }

  std::vector<int32_t> take_blocks(int32_t tokens) {
    const auto count = static_cast<size_t>(blocks_for(tokens));
    std::vector<int32_t> blocks(free_.end() - static_cast<std::ptrdiff_t>(count), free_.end());
    free_.resize(free_.size() - count);
    return blocks;
  }

  // Rows of K (or of V) at positions [0, tokens), converted one element at a time.
  Floats rows(const void* cache,
              const float* scales,
              std::span<const int32_t> blocks,
              int32_t tokens) const {
    const KvLayerView kv = view();
    Floats out;
    for (int32_t p = 0; p < tokens; ++p) {
      for (int32_t head = 0; head < kv.num_kv_heads; ++head) {
        const int64_t first = kv.offset(blocks[static_cast<size_t>(p / kBlockTokens)], head) +
                              static_cast<int64_t>(p % kBlockTokens) * kv.head_dim;
        Floats row(static_cast<size_t>(kv.head_dim));
        const size_t bytes = bytes_of(kv.dtype, kv.head_dim);
        dequantize(kv.dtype,
                   {static_cast<const std::byte*>(cache) + bytes_of(kv.dtype, first), bytes}, row);
        const float scale = scales == nullptr ? 1.0f : scales[first / kv.head_dim];
        for (float value : row) out.push_back(value * scale);
      }
    }
    return out;
  }

  Floats k_rows(std::span<const int32_t> blocks, int32_t tokens) const {
    return rows(view().k, view().k_scale, blocks, tokens);
  }

  Floats v_rows(std::span<const int32_t> blocks, int32_t tokens) const {
    return rows(view().v, view().v_scale, blocks, tokens);
  }

 private:
  std::mt19937 random_{5};
  KvLayout layout_;
  KvCache cache_;
  std::vector<int32_t> free_;
};

// Rotation by nothing: cosines 1, sines 0.
inline Floats identity_table(int32_t positions, int32_t rotary_dim) {
  Floats table;
  for (int32_t p = 0; p < positions; ++p) {
    table.insert(table.end(), static_cast<size_t>(rotary_dim / 2), 1.0f);
    table.insert(table.end(), static_cast<size_t>(rotary_dim / 2), 0.0f);
  }
  return table;
}

// Every number times `factor`, as models with an attention factor have it.
inline Floats rope_table(int32_t positions, int32_t rotary_dim, float factor = 1) {
  Floats table;
  for (int32_t p = 0; p < positions; ++p) {
    for (int part = 0; part < 2; ++part) {
      for (int32_t i = 0; i < rotary_dim / 2; ++i) {
        const double angle = p * std::pow(10000.0, -2.0 * i / rotary_dim);
        table.push_back(static_cast<float>((part == 0 ? std::cos(angle) : std::sin(angle)) *
                                           static_cast<double>(factor)));
      }
    }
  }
  return table;
}

}  // namespace droidspeak::cpu
