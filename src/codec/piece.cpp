#include "codec/piece.h"

#include <cstdlib>
#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"

namespace droidspeak {
namespace {

Error corrupt(std::string message) {
  return {ErrorCode::kDataCorrupt, "coded K/V: " + std::move(message)};
}

bool are_in_order(const CodecTables& tables,
                  int32_t layer,
                  std::span<const std::byte> escapes,
                  size_t num_symbols) {
  size_t first = 0;  // that the next one may have
  for (size_t i = 0; i < escapes.size() / sizeof(Escape); ++i) {
    Escape escape = load_escape(escapes, i);
    if (escape.index < first || escape.index >= num_symbols ||
        std::abs(int64_t{escape.value}) > kLargestEscape)
      return false;
    const Distribution& symbols = tables.distribution_at(layer, escape.index, num_symbols);
    if (symbols.symbol_of(escape.value) != kEscape) return false;
    first = escape.index + size_t{1};
  }
  return true;
}

}  // namespace

Escape load_escape(std::span<const std::byte> escapes, size_t number) {
  Escape escape{};
  std::memcpy(&escape, escapes.data() + number * sizeof escape, sizeof escape);
  return escape;
}

TablesName name_of_tables(const Digest& digest) {
  TablesName name{};
  std::memcpy(name.data(), digest.bytes.data(), name.size());
  return name;
}

std::optional<TablesName> tables_of_piece(std::span<const std::byte> piece) {
  PieceHeader header{};
  if (piece.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, piece.data(), sizeof header);
  if (header.magic != kPieceMagic || header.version != kPieceVersion) return std::nullopt;
  return header.tables;
}

PieceShape::PieceShape(const KvLayout& layout, size_t value_bytes)
    : num_blocks(value_bytes / layout.layer_bytes()),
      channels(static_cast<size_t>(layout.num_kv_heads) * static_cast<size_t>(layout.head_dim)),
      row_channels(padded_channels(layout.num_kv_heads, layout.head_dim)),
      half_symbols(num_blocks * kBlockTokens * row_channels),
      scale_bytes(num_blocks * kBlockTokens / 2),
      element_bytes(bytes_of(layout.dtype, 1)) {
  check(value_bytes > 0 && value_bytes % layout.layer_bytes() == 0, "values are whole blocks");
}

bool PieceShape::is_codable() const {
  return num_blocks <= UINT16_MAX && 2 * half_symbols / kLanes <= UINT16_MAX;
}

uint32_t exact_tokens_at(uint32_t first_position) {
  return first_position < kExactTokens ? kExactTokens - first_position : 0;
}

uint8_t dtype_code(DType dtype) {
  if (dtype == DType::kF32) return 0;
  if (dtype == DType::kF16) return 1;
  check(dtype == DType::kBF16, "only floats are coded");
  return 2;
}

Result<PieceParts> parse_piece(const CodecTables& tables,
                               const KvLayout& layout,
                               const PieceLabel& label,
                               std::span<const std::byte> piece,
                               size_t value_bytes) {
  PieceShape shape(layout, value_bytes);
  if (!shape.is_codable())
    return corrupt(fmt::format("{} blocks are more than a piece has", shape.num_blocks));
  PieceParts parts{};
  PieceHeader& header = parts.header;
  if (piece.size() < sizeof header)
    return corrupt(fmt::format("{} bytes, a header has {}", piece.size(), sizeof header));
  std::memcpy(&header, piece.data(), sizeof header);
  if (header.magic != kPieceMagic || header.version != kPieceVersion || header.reserved != 0)
    return corrupt("does not start as a piece of this version does");
  if (header.tables != name_of_tables(tables.digest()))
    return corrupt("was coded with other tables");
  if (header.layer != label.layer || header.first_position != label.first_position ||
      header.num_blocks != shape.num_blocks || header.dtype != dtype_code(layout.dtype) ||
      header.num_exact_tokens != exact_tokens_at(label.first_position)) {
    return corrupt(fmt::format(
        "layer {}, position {}, {} blocks where layer {}, position {}, {} blocks were asked for",
        header.layer, header.first_position, header.num_blocks, label.layer, label.first_position,
        shape.num_blocks));
  }
  if (header.num_escapes > 2 * shape.half_symbols)
    return corrupt(
        fmt::format("{} escapes of {} values", header.num_escapes, 2 * shape.half_symbols));
  size_t word_bytes =
      2 * std::accumulate(header.num_words.begin(), header.num_words.end(), size_t{0});
  size_t escape_bytes = header.num_escapes * sizeof(Escape);
  size_t exact_bytes = 2 * header.num_exact_tokens * shape.channels * shape.element_bytes;
  size_t expected = sizeof header + word_bytes + kLanes * sizeof(uint32_t) + shape.scale_bytes +
                    escape_bytes + exact_bytes;
  if (piece.size() != expected)
    return corrupt(fmt::format("{} bytes, the header says {}", piece.size(), expected));
  size_t at = sizeof header;
  auto cut = [&](size_t bytes) {
    auto part = piece.subspan(at, bytes);
    at += bytes;
    return part;
  };
  parts.words = cut(word_bytes);
  parts.states = cut(kLanes * sizeof(uint32_t));
  parts.scales = cut(shape.scale_bytes);
  parts.escapes = cut(escape_bytes);
  parts.exact = cut(exact_bytes);
  if (!are_in_order(tables, label.layer, parts.escapes, 2 * shape.half_symbols))
    return corrupt("an escape is out of order, in a wrong place or has a value out of range");
  return parts;
}

Result<void> check_piece(const CodecTables& tables,
                         const KvLayout& layout,
                         const PieceLabel& label,
                         std::span<const std::byte> piece) {
  Result<PieceParts> parts = parse_piece(tables, layout, label, piece, layout.layer_bytes());
  if (!parts) return parts.error();
  return {};
}

}  // namespace droidspeak
