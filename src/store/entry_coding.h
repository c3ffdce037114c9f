// How K/V that is held coded becomes values.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "codec/kv_codec.h"

namespace droidspeak {

struct EntryCoding {
  std::shared_ptr<const CodecTables> tables;
  KvLayout layout;
  PieceLabel label;

  size_t value_bytes() const { return layout.layer_bytes(); }
};

// Whether the piece is one of this place, apart from its streams.
inline bool check_piece(const EntryCoding& coding, std::span<const std::byte> piece) {
  return bool{check_piece(*coding.tables, coding.layout, coding.label, piece)};
}

}  // namespace droidspeak
