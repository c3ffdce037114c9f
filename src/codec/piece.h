// The bytes of a coded piece, in order: PieceHeader, the streams' words one stream after another,
// their first states, V's scales, the values behind escapes, the exact tokens.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "codec/kv_codec.h"

namespace droidspeak {

struct PieceHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t layer;
  TablesName tables;
  uint32_t first_position;
  uint16_t num_blocks;
  uint8_t num_exact_tokens;
  uint8_t dtype;
  uint32_t num_escapes;
  uint32_t reserved;
  std::array<uint16_t, kLanes> num_words;  // of each stream
};

static_assert(sizeof(PieceHeader) == 40 + 2 * kLanes);

inline constexpr uint32_t kPieceMagic = 0x314b5344;  // "DSK1"
inline constexpr uint16_t kPieceVersion = 2;

// A value that is no symbol: where it stands (row * row_channels + channel, K's rows first) and the
// value in steps.
struct Escape {
  uint32_t index;
  int32_t value;
};

inline constexpr int32_t kLargestEscape = 32767;
Escape load_escape(std::span<const std::byte> escapes, size_t number);

// A piece cut into its parts, which lie inside the bytes they were cut from.
struct PieceParts {
  PieceHeader header;
  std::span<const std::byte> words;   // all streams; more bytes of the piece follow
  std::span<const std::byte> states;  // uint32_t[kLanes]
  std::span<const std::byte> scales;  // of V: [tokens], four bits each, low first
  std::span<const std::byte> escapes;
  std::span<const std::byte> exact;  // [2, tokens, num_kv_heads, head_dim] of the dtype
};

// Of a layer of `num_blocks`; nothing more than 16 bits count fits into one piece.
struct PieceShape {
  PieceShape(const KvLayout& layout, size_t value_bytes);

  bool is_codable() const;

  size_t num_blocks;
  size_t channels;      // of a token
  size_t row_channels;  // with those that fill a row up
  size_t half_symbols;  // of K, or of V
  size_t scale_bytes;
  size_t element_bytes;
};

uint32_t exact_tokens_at(uint32_t first_position);
// The number that a piece has for a float dtype.
uint8_t dtype_code(DType dtype);
// Checks everything but the streams: places, sizes, and that escapes are in order and in range.
Result<PieceParts> parse_piece(const CodecTables& tables,
                               const KvLayout& layout,
                               const PieceLabel& label,
                               std::span<const std::byte> piece,
                               size_t value_bytes);

}  // namespace droidspeak
