// What this process knows of other nodes' memory: which node has which entries of which block, and
// where the nodes are. Leases end by themselves. A limited number of blocks: the oldest are
// forgotten first. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "store/tiers/aged_blocks.h"
#include "store/tiers/peer_records.h"
#include "store/tiers/tier.h"

namespace droidspeak {

class PeerIndex {
 public:
  using Time = std::chrono::steady_clock::time_point;

  static constexpr size_t kMaxNodes = 4096;
  static constexpr std::chrono::seconds kFresh{5};  // a holding is not asked for again so soon

  explicit PeerIndex(const PeerNodeId& own) : own_(own) {}

  const PeerNodeId& own() const { return own_; }

  void look_up(std::span<const Digest> keys,
               std::span<const EntryId> wanted,
               std::span<Presence> found,
               Time now) const;
  // How many leading blocks are not on their way.
  size_t num_known(std::span<const Digest> keys) const;
  // Blocks to ask the directory for; they count as on their way from now on.
  std::vector<Digest> questions(std::span<const Digest> keys, Time now);
  // The answer; nothing: nobody has it, or nobody could be asked.
  void set_holding(const Digest& key, const std::optional<PeerHolding>& holding, Time now);
  void set_lease(const PeerNodeId& node, const std::optional<std::string>& address, Time until);
  // Whether the node's lease is not known well beyond `soon`.
  bool needs_lease(const PeerNodeId& node, Time soon) const;

  // Where to read it from.
  std::optional<std::string> address_of(const Digest& key, EntryId id, Time now) const;
  // The nodes that have something of these blocks, and of how many.
  std::map<std::string, size_t> count_by_address(std::span<const Digest> keys, Time now) const;
  void set_gone(const Digest& key, EntryId id);

  void forget(const Digest& key);
  void forget_all();
  size_t num_blocks() const;  // known or asked for

 private:
  struct Block {
    std::optional<PeerHolding> holding{};
    bool is_asked = false;
    Time known_since{};
  };

  struct Node {
    std::string address;
    Time until{};
  };

  const std::string* find_address(const Block& block, EntryId id, Time now) const REQUIRES(mutex_);

  const PeerNodeId own_;
  mutable Mutex mutex_;
  AgedBlocks<Block> blocks_ GUARDED_BY(mutex_);
  std::map<PeerNodeId, Node> nodes_ GUARDED_BY(mutex_);
};

}  // namespace droidspeak
