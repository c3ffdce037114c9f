// Puts what sequences have read, and answered, into the store and lets others share its blocks on
// the device. Used by the engine thread.
#pragma once

#include <functional>

#include "engine/adapter_registry.h"
#include "engine/prefill_chooser.h"
#include "engine/sequence.h"
#include "sharing/plan_books.h"
#include "sharing/write_back.h"

namespace droidspeak {

class PromptWriter {
 public:
  // Everything outlives the writer.
  struct Parts {
    Ops& ops;
    KvCache& kv;
    CacheStore& store;
    const PlanBooks& books;
    const PrefillChooser& chooser;
    AdapterRegistry& adapters;
    WriteBack& write_back;
    std::function<void()> on_progress;  // of storing; any thread
  };

  explicit PromptWriter(Parts parts) : parts_(std::move(parts)) {}

  // The sequence has begun to read by its choice.
  void start(Sequence& sequence) const;
  // Begins to put the full blocks that are new since the last call into the store, and lets
  // others share them.
  void store_blocks(Sequence& sequence) const;
  // What was read is not worth keeping: takes it out of the store, whoever has put it there.
  void discard(Sequence& sequence) const;
  // Takes note of what is in the store by now.
  void note_stored(Sequence& sequence) const;

 private:
  std::vector<Digest> mixed_keys_of(const Sequence& sequence) const;
  void extend_keys(Sequence& sequence) const;
  void share_blocks(Sequence& sequence) const;

  Parts parts_;
};

}  // namespace droidspeak
