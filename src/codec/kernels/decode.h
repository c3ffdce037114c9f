// The two inner loops of decoding, for each instruction set; all give the same bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "codec/tables.h"
#include "ops/cpu/instruction_set.h"

namespace droidspeak::cpu {

// The interleaved rANS streams of a piece, as far as they were read. Stream i codes the channels
// whose number leaves i when divided by kLanes.
struct SymbolStreams {
  const std::byte* words;               // all streams; at least four bytes follow the last
  std::array<uint32_t, kLanes> states;  // any
  std::array<int32_t, kLanes> at;       // bytes from `words` to the next one
  std::array<int32_t, kLanes> last;     // where it ends: nothing behind is taken in
  const DecodeSlot* decode_slots;       // of all distributions
};

// Rows of symbols: [num_rows, num_channels]; num_channels is a multiple of kLanes.
struct SymbolRows {
  int16_t* symbols;
  const uint32_t* first_slots;  // [num_channels]
  size_t num_rows;
  size_t num_channels;
};

using DecodeSymbols = void (*)(SymbolStreams& streams, const SymbolRows& rows);

// One head of one token: value = mean + step * scale * symbol, its pairs turned, stored as `dtype`.
struct HeadRow {
  const int16_t* symbols;  // [head_dim], as the following
  const float* means;
  const float* steps;
  float scale;           // of the steps
  const float* cosines;  // [num_pairs]
  const float* sines;
  std::byte* values;
};

struct HeadShape {
  size_t head_dim;
  size_t num_pairs;  // 0: nothing is turned
  DType dtype;
};

using DequantiseHead = void (*)(const HeadRow& row, const HeadShape& shape);

struct DecodeKernels {
  explicit DecodeKernels(InstructionSet set);

  DecodeSymbols decode_symbols;
  DequantiseHead dequantise_head;
};

}  // namespace droidspeak::cpu
