// What is known of a remote store: which values of which blocks are there, since when that is
// known, and what has been asked and not answered yet. A limited number of blocks: the oldest are
// forgotten first, and those that this process has written, and may have to erase, after all
// others. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "store/block_label.h"
#include "store/cache_key.h"
#include "store/tiers/aged_blocks.h"
#include "store/tiers/tier.h"

namespace droidspeak {

// Values of one block to be asked for.
struct RemoteQuestion {
  Digest key;
  std::vector<EntryId> values;  // first_of_value() of each, no two alike
};

class RemoteIndex {
 public:
  using Time = std::chrono::steady_clock::time_point;

  static constexpr std::chrono::seconds kFresh{5};  // a hit is not asked for again so soon

  void look_up(std::span<const Digest> keys,
               std::span<const EntryId> wanted,
               std::span<Presence> found) const;
  // How many leading blocks have none of these on its way.
  size_t num_known(std::span<const Digest> keys, std::span<const EntryId> wanted) const;
  // What has to be asked; it counts as on its way from now on, unless it is known already.
  std::vector<RemoteQuestion> questions(std::span<const Digest> keys,
                                        std::span<const EntryId> wanted,
                                        Time now);

  void set_there(const Digest& key, EntryId id, Time now);
  void set_gone(const Digest& key, EntryId id);
  // It is there, but not what it should be: a miss until it is written anew.
  void set_damaged(const Digest& key, EntryId id);
  // Written by this process: `owner` may be erased later.
  void set_written(const BlockLabel& label, EntryId id, Time now);

  // Forgets, and gives the names of the values that were known to be there.
  std::vector<std::string> remove(const Digest& key);
  std::vector<std::string> remove_owned_by(const Digest& owner);
  std::vector<std::string> remove_written();
  // Everything: whoever answers next may know other things.
  void forget_all();

  size_t num_blocks() const;

 private:
  struct Value {
    EntryId first{};
    Presence presence = Presence::kMiss;
    bool is_damaged = false;
    Time known_since{};
  };

  struct Block {
    std::vector<Value> values;
    Digest owner{};
    bool is_written = false;
  };

  static const Value* find(const Block& block, EntryId id);
  static Value& value_of(Block& block, EntryId id);
  static void append_names(const Digest& key, const Block& block, std::vector<std::string>& names);
  template <class Wanted>
  std::vector<std::string> remove_if(Wanted is_wanted);

  mutable Mutex mutex_;
  AgedBlocks<Block> blocks_ GUARDED_BY(mutex_);
};

}  // namespace droidspeak
