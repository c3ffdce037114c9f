// The blocks of this node that others may read: what it computed itself, by label. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "store/block_label.h"
#include "store/tiers/peer_records.h"
#include "store/tiers/tier.h"

namespace droidspeak {

class PeerHoldings {
 public:
  static constexpr size_t kMaxBlocks = size_t{1} << 18;

  void add(const BlockLabel& label, std::span<const PendingEntry> entries);
  // Nothing when the entry is not for others.
  std::optional<BlockLabel> find(const Digest& key, EntryId id) const;
  std::optional<EntrySet> entries_of(const Digest& key) const;
  std::vector<Digest> keys() const;

  void remove(const Digest& key);
  void remove_owned_by(const Digest& owner);
  void clear();

 private:
  struct Block {
    BlockLabel label;
    EntrySet entries;
  };

  mutable Mutex mutex_;
  std::unordered_map<Digest, Block, DigestHash> blocks_ GUARDED_BY(mutex_);
  std::deque<Digest> by_age_ GUARDED_BY(mutex_);  // of blocks_, and of some that are gone
};

}  // namespace droidspeak
