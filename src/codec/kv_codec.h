// K/V of one layer of a few consecutive blocks in about a fifth of its f16 size. Loses what the
// quantiser's steps lose: half a step a channel, before RoPE mixes two of K and the dtype rounds;
// V's steps grow with the token. The first tokens of a context, which everything attends to, are
// kept as they are.
//
// A piece stands for itself, given the tables it names. Its bytes are written down in
// docs/store_format.md. Decoding trusts nothing: any bytes give either values or an error, and take
// no more memory than the values and as much again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "codec/kernels/decode.h"
#include "codec/tables.h"
#include "kv/kv_cache.h"
#include "ops/cpu/instruction_set.h"

namespace droidspeak {

// Tokens at the start of a context that stay exact.
inline constexpr uint32_t kExactTokens = 4;

struct PieceLabel {
  int32_t layer = 0;
  uint32_t first_position = 0;  // in the context, a multiple of kBlockTokens

  bool operator==(const PieceLabel&) const = default;
};

// `values` are whole blocks, each layout.layer_bytes(), one behind the other. Nothing when a value
// is not finite, would not be when decoded, or lies far outside of what the tables have seen, or
// when there are too many blocks for one piece: then they must be stored as they are. The tables
// fit the layout.
std::optional<std::vector<std::byte>> encode_piece(const CodecTables& tables,
                                                   const KvLayout& layout,
                                                   const PieceLabel& label,
                                                   std::span<const std::byte> values);

// How many leading bytes of the tables' digest a piece carries.
inline constexpr size_t kTablesNameBytes = 16;
using TablesName = std::array<uint8_t, kTablesNameBytes>;

TablesName name_of_tables(const Digest& digest);
// Which tables a piece was coded with; nothing when it is none.
std::optional<TablesName> tables_of_piece(std::span<const std::byte> piece);

// Everything that decode() says of a piece of one block before it looks at the streams.
Result<void> check_piece(const CodecTables& tables,
                         const KvLayout& layout,
                         const PieceLabel& label,
                         std::span<const std::byte> piece);

class PieceDecoder {
 public:
  explicit PieceDecoder(cpu::InstructionSet set = cpu::best_instruction_set());

  // Fills `values`, the size of which says how many blocks are expected. kDataCorrupt when the
  // piece names other tables, another layer, position, dtype or size, or does not decode; `values`
  // then holds anything. Damage that leaves the streams consistent is not seen: whoever stores a
  // piece keeps a checksum. The tables fit the layout.
  Result<void> decode(const CodecTables& tables,
                      const KvLayout& layout,
                      const PieceLabel& label,
                      std::span<const std::byte> piece,
                      std::span<std::byte> values) const;

 private:
  cpu::DecodeKernels kernels_;
};

}  // namespace droidspeak
