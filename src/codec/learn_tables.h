// Makes a model's tables from K/V that it has written.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "codec/kv_codec.h"
#include "codec/tables.h"

namespace droidspeak {

// One layer of whole blocks, as encode_piece() takes it.
struct KvSample {
  PieceLabel label;
  std::span<const std::byte> values;
};

// Tokens of each layer from which tables are learned; fewer say too little of the channels.
inline constexpr size_t kLearnedTokens = 4 * kBlockTokens;

// How coarse the quantiser is. The step of a channel is `step` * deviation^equality *
// (the half's root mean square deviation)^(1 - equality): 1 treats every channel alike relative to
// its size, 0 loses the same amount in each. The values are measured: see
// docs/decisions/009-kv-codec.md.
struct Coarseness {
  float key_step = 0.46f;
  float value_step = 0.46f;
  float equality = 0.0f;
};

// Nothing when a layer has fewer tokens than kLearnedTokens, those that stay exact not counted, or
// values that are not finite. The dtype is a float's.
std::optional<CodecTables> learn_tables(const KvLayout& layout,
                                        std::vector<float> rope_frequencies,
                                        std::span<const KvSample> samples,
                                        const Coarseness& coarseness = {});

}  // namespace droidspeak
