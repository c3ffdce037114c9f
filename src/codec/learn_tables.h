// Makes a model's tables from K/V that it has written.
#pragma once

#include <span>
#include <vector>

#include "base/result.h"
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

// So many of them differ: a token over and over says nothing of how others spread.
inline constexpr size_t kDistinctTokens = kLearnedTokens / 4;

// The step of every channel in the half's root mean square deviations. Measured: see
// docs/decisions/009-kv-codec.md.
struct Coarseness {
  float key_step = 0.46f;
  float value_step = 0.46f;
  // Of each channel's own step, [num_layers, 2, num_kv_heads * head_dim]: finer where answers hang
  // on it. Empty: the same for all. In the range of kLeastStepFactor to kMostStepFactor.
  std::span<const float> factors = {};
};

inline constexpr float kLeastStepFactor = 1.0f / 32;
inline constexpr float kMostStepFactor = 32.0f;

// Of Coarseness::factors.
size_t num_step_factors(const KvLayout& layout);

// kInvalidArgument, with what is wrong, when a layer has fewer tokens than kLearnedTokens or fewer
// kinds of them than kDistinctTokens, when its values hardly spread, are not finite or too large.
// The dtype is a float's.
Result<CodecTables> learn_tables(const KvLayout& layout,
                                 const KeyRotation& rotation,
                                 std::span<const KvSample> samples,
                                 const Coarseness& coarseness = {});

}  // namespace droidspeak
