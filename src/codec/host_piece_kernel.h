// What a device's kernel does, one symbol at a time and in host memory: a reference for tests, and
// a stand-in where there is no device.
#pragma once

#include <cstring>
#include <vector>

#include "ops/piece_kernel.h"
#include "tensor/half.h"

namespace droidspeak {

class HostPieceKernel final : public PieceKernel {
 public:
  void decode(const PieceTables& tables, const PieceBatch& batch, const KvLayerView& kv) override {
    for (int32_t i = 0; i < batch.num_pieces; ++i) {
      const PieceTask& task = batch.tasks[i];
      std::vector<int> symbols;
      if (!read_symbols(tables, batch.bytes, task, symbols)) batch.is_damaged[i] = 1;
      const float* first = batch.first_turns + 2 * i * tables.num_pairs;
      for (int32_t row = 0; row < 2 * kBlockTokens; ++row)
        for (int32_t head = 0; head < kv.num_kv_heads; ++head)
          for (int32_t c = 0; c < kv.head_dim; ++c)
            put(tables, batch.bytes, task, kv, first, symbols, {row, head, c});
    }
  }

 private:
  struct Place {
    int32_t row, head, c;
  };

  template <class T>
  static T load(const std::byte* at) {
    T value{};
    std::memcpy(&value, at, sizeof value);
    return value;
  }

  static bool read_symbols(const PieceTables& tables,
                           const std::byte* bytes,
                           const PieceTask& task,
                           std::vector<int>& symbols) {
    int32_t num_symbols = 2 * kBlockTokens * tables.row_channels;
    symbols.resize(static_cast<size_t>(num_symbols));
    const std::byte* next = bytes + task.words_at;
    bool is_finished = true;
    uint32_t num_marks = 0;
    for (int32_t lane = 0; lane < kPieceLanes; ++lane) {
      auto state = load<uint32_t>(bytes + task.states_at + 4 * lane);
      const std::byte* last = next + 2 * load<uint16_t>(bytes + task.num_words_at + 2 * lane);
      for (int32_t i = lane; i < num_symbols; i += kPieceLanes) {
        int32_t half = i / (num_symbols / 2);
        unsigned distribution =
            tables.distributions[half * tables.row_channels + i % tables.row_channels];
        uint32_t slot = state % kPieceSlots;
        unsigned symbol = tables.symbols[distribution * kPieceSlots + slot];
        uint32_t range = tables.ranges[distribution * kPieceSymbols + symbol];
        state = (range >> 16) * (state / kPieceSlots) + slot - (range & 0xffff);
        if (state < 1u << 16) {
          state = state << 16 | load<uint16_t>(next);
          if (next < last) next += 2;
        }
        num_marks += symbol == kPieceSymbols - 1;
        symbols[static_cast<size_t>(i)] = static_cast<int>(symbol) - kPieceZero;
      }
      is_finished = is_finished && next == last && state == 1u << 16;
      next = last;
    }
    for (uint32_t i = 0; i < task.num_escapes; ++i) {
      const std::byte* escape = bytes + task.escapes_at + 8 * i;
      int& symbol = symbols[load<uint32_t>(escape)];
      if (symbol != kPieceSymbols - 1 - kPieceZero) return false;
      symbol = load<int32_t>(escape + 4);
    }
    return is_finished && num_marks == task.num_escapes;
  }

  static void put(const PieceTables& tables,
                  const std::byte* bytes,
                  const PieceTask& task,
                  const KvLayerView& kv,
                  const float* first,
                  const std::vector<int>& symbols,
                  Place at) {
    int32_t half = at.row / kBlockTokens;
    int32_t token = at.row % kBlockTokens;
    size_t size = bytes_of(kv.dtype, 1);
    auto* values = static_cast<std::byte*>(half == 0 ? kv.k : kv.v);
    values +=
        static_cast<size_t>(kv.offset(task.block, at.head) + token * kv.head_dim + at.c) * size;
    if (token < task.num_exact) {
      int32_t row = (half * task.num_exact + token) * kv.num_kv_heads + at.head;
      std::memcpy(values,
                  bytes + task.exact_at + static_cast<size_t>(row * kv.head_dim + at.c) * size,
                  size);
      return;
    }
    auto both = load<uint8_t>(bytes + task.scales_at + token / 2);
    float scale = half == 0 ? 1.0f : tables.scales[token % 2 == 0 ? both & 15 : both >> 4];
    auto value_at = [&](int32_t c) {
      int32_t channel = at.head * kv.head_dim + c;
      int32_t code = half * tables.row_channels + channel;
      int symbol = symbols[static_cast<size_t>(at.row * tables.row_channels + channel)];
      return tables.means[code] + tables.steps[code] * scale * static_cast<float>(symbol);
    };
    int32_t pairs = half == 0 ? tables.num_pairs : 0;
    float value = value_at(at.c);
    if (at.c < 2 * pairs) {
      int32_t i = at.c % pairs;
      const float* on = tables.turns + 2 * token * pairs;
      float cosine = first[i] * on[i] - first[pairs + i] * on[pairs + i];
      float sine = first[pairs + i] * on[i] + first[i] * on[pairs + i];
      value = at.c < pairs ? value * cosine - value_at(at.c + pairs) * sine
                           : value * cosine + value_at(at.c - pairs) * sine;
    }
    if (kv.dtype == DType::kF32) {
      std::memcpy(values, &value, sizeof value);
      return;
    }
    uint16_t bits = kv.dtype == DType::kF16 ? f16_from_float(value) : bf16_from_float(value);
    std::memcpy(values, &bits, sizeof bits);
  }
};

}  // namespace droidspeak
