// What the codec knows of a model before it sees a piece: for each channel of K and of V of each
// layer the mean, the step of its quantiser and which distribution its symbols follow. Learned from
// data once (codec/learn_tables.h), serialised, and named by digest in every piece coded with it.
// Immutable; safe to use from many threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "codec/distribution.h"
#include "codec/turns.h"
#include "kv/kv_cache.h"

namespace droidspeak {

enum class KvHalf : uint8_t { kKeys = 0, kValues = 1 };

// A piece is coded in so many interleaved rANS streams; a row of channels is filled up to a
// multiple of it with channels that take no room.
inline constexpr size_t kLanes = 32;

inline constexpr uint32_t kTablesVersion = 2;  // of what serialise() writes

inline constexpr uint8_t kZeros = 0;  // the distribution of such channels
inline constexpr size_t kNumDistributions = 16;

// value = means + steps * scale * symbol, for a row of channels [num_kv_heads * head_dim, filled
// up]. The scale is 1 for K and the token's for V.
struct ChannelCodes {
  std::vector<float> means;
  std::vector<float> steps;
  std::vector<uint8_t> distributions;
  float spread = 1;  // root mean square of (value - mean) / step over all channels
};

struct TableContents {
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  KeyRotation rotation;                     // layers that are not turned have K as it is
  std::vector<Distribution> distributions;  // kNumDistributions
  std::vector<ChannelCodes> halves;         // [num_layers, 2]: K, V
};

// No mean or step is larger: what a piece says then stays finite, whatever it says.
inline constexpr float kLargestTableValue = 1e9f;

// Channels of a row with those that fill it up.
size_t padded_channels(int32_t num_kv_heads, int32_t head_dim);

class CodecTables {
 public:
  // The contents are those of learn_tables() or parse().
  explicit CodecTables(TableContents contents);

  // kDataCorrupt for anything that serialise() does not write.
  static Result<CodecTables> parse(std::span<const std::byte> bytes);
  std::vector<std::byte> serialise() const;

  const Digest& digest() const { return digest_; }

  int32_t num_layers() const { return static_cast<int32_t>(contents_.halves.size() / 2); }

  size_t row_channels() const { return row_channels_; }

  // Whether pieces of this layout can be coded with these tables.
  bool fit(const KvLayout& layout) const;

  const TableContents& contents() const { return contents_; }

  const ChannelCodes& codes(int32_t layer, KvHalf half) const {
    return contents_.halves[2 * static_cast<size_t>(layer) + static_cast<size_t>(half)];
  }

  // Of a piece's symbol: K's rows first, then V's, `num_symbols` in all.
  const Distribution& distribution_at(int32_t layer, size_t index, size_t num_symbols) const {
    KvHalf half = index < num_symbols / 2 ? KvHalf::kKeys : KvHalf::kValues;
    return contents_.distributions[codes(layer, half).distributions[index % row_channels_]];
  }

  // Of every channel, where its distribution's decode slots start.
  std::span<const uint32_t> first_slots(int32_t layer, KvHalf half) const;

  std::span<const DecodeSlot> decode_slots() const { return decode_slots_; }

  const Turns& turns() const { return turns_; }

  // Pairs of a head that RoPE turns in K of this layer.
  size_t turned_pairs(int32_t layer) const;

 private:
  TableContents contents_;
  size_t row_channels_;
  Turns turns_;
  std::vector<DecodeSlot> decode_slots_;
  std::vector<uint32_t> first_slots_;
  Digest digest_;
};

}  // namespace droidspeak
