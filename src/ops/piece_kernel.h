// Coded K/V (codec/kv_codec.h) decoded by the device that it is for, where the device can. Knows
// nothing of a piece's header: what points where was checked before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "device/device.h"
#include "kv/kv_view.h"

namespace droidspeak {

inline constexpr int kPieceLanes = 32;          // interleaved rANS streams
inline constexpr int kPieceDistributions = 16;  // that channels choose from
inline constexpr int kPieceZero = 126;          // the symbol that stands for 0
inline constexpr int kPieceSymbols = 254;       // -126 to 126, and the escape
inline constexpr int kPieceSlots = 4096;        // of a distribution, shared among its symbols

// Of one layer, in the device's memory. Arrays of halves hold K, then V.
struct PieceTables {
  const uint8_t* symbols;        // [kPieceDistributions, kPieceSlots]: whose slot it is
  const uint32_t* ranges;        // [kPieceDistributions, kPieceSymbols]: slots << 16 | first slot
  const uint8_t* distributions;  // [2, row_channels]
  const float* means;            // [2, row_channels]
  const float* steps;            // [2, row_channels]
  const float* turns;            // [kBlockTokens, 2, num_pairs]: cosines and sines from token 0 on
  int32_t num_pairs;
  int32_t row_channels;  // of a token over all heads, filled up to a multiple of kPieceLanes
  float scales[16];      // of V: what its four bits stand for
};

// One block of the layer. Places are bytes from the batch's `bytes`, all of them even.
struct PieceTask {
  uint32_t num_words_at;  // uint16_t[kPieceLanes]
  uint32_t words_at;      // of the first stream; two bytes more than those of all can be read
  uint32_t states_at;     // uint32_t[kPieceLanes]
  uint32_t scales_at;     // uint8_t[kBlockTokens / 2]: of V, two tokens each
  uint32_t escapes_at;    // uint32_t index, int32_t value; ascending
  uint32_t num_escapes;
  uint32_t exact_at;  // [2, num_exact, num_kv_heads, head_dim] of the dtype
  int32_t num_exact;  // leading tokens that are not coded
  int32_t block;      // where the values go
};

struct PieceBatch {
  const std::byte* bytes;    // in the device's memory, as the next two
  const PieceTask* tasks;    // [num_pieces]
  const float* first_turns;  // [num_pieces, 2, num_pairs]: of each block's first token
  uint32_t* is_damaged;      // [num_pieces] in pinned host memory: 1 when streams do not fit
  int32_t num_pieces;
};

class PieceKernel {
 public:
  virtual ~PieceKernel() = default;
  // Beside the device's compute stream; returns when the values are there. What is in the blocks of
  // damaged pieces is anything.
  virtual void decode(const PieceTables& tables,
                      const PieceBatch& batch,
                      const KvLayerView& kv) = 0;
};

// Null: the device has none, or too little shared memory for rows of so many channels.
std::unique_ptr<PieceKernel> make_piece_kernel(const Device& device, int32_t row_channels);

}  // namespace droidspeak
