// What the directory says: which node has which entries of a block, and where a node is. Records
// are signed with the family's secret; one who can only write to the directory can make none.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "store/cache_key.h"

namespace droidspeak {

// Another one in every process, so that what a node had before it died is not looked for.
using PeerNodeId = std::array<std::byte, 16>;

PeerNodeId random_node_id();

// Entries of one block. Layers beyond kMaxLayers are left out: they are not found at peers.
class EntrySet {
 public:
  static constexpr int32_t kMaxLayers = 256;

  void add(EntryId id);
  void remove(EntryId id);
  bool holds(EntryId id) const;

  bool empty() const { return bits_.none(); }

  std::string text() const;  // kTextBytes
  static EntrySet from_text(std::string_view text);

  static constexpr size_t kTextBytes = 2 * kMaxLayers / 8;

 private:
  static std::optional<size_t> place_of(EntryId id);

  std::bitset<size_t{2} * kMaxLayers> bits_;  // K/V of all layers, then inputs
};

struct PeerHolding {
  PeerNodeId node{};
  EntrySet entries{};
};

class PeerRecords {
 public:
  explicit PeerRecords(std::span<const std::byte> secret);

  static std::string block_name(const Digest& key);
  static std::string node_name(const PeerNodeId& node);

  std::string holding_text(const Digest& key, const PeerHolding& holding) const;
  // Nothing for what was not made with the secret for this very key.
  std::optional<PeerHolding> parse_holding(const Digest& key, std::string_view text) const;

  std::string lease_text(const PeerNodeId& node, std::string_view address) const;
  std::optional<std::string> parse_lease(const PeerNodeId& node, std::string_view text) const;

 private:
  std::string tag_of(std::string_view name, std::string_view content) const;
  std::optional<std::string_view> content_of(std::string_view name, std::string_view text) const;

  std::array<std::byte, 32> key_;
};

}  // namespace droidspeak
