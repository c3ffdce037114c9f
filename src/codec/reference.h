// Decoding by its definition, one symbol at a time: what the kernels are compared with.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "codec/kv_codec.h"

namespace droidspeak {

// Of a piece that encode_piece() wrote for this label; nothing when its streams do not end right.
std::optional<std::vector<std::byte>> reference_decode(const CodecTables& tables,
                                                       const KvLayout& layout,
                                                       const PieceLabel& label,
                                                       std::span<const std::byte> piece,
                                                       size_t value_bytes);

}  // namespace droidspeak
