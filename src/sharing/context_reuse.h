// Partial prefill of one context: loads what the plan reuses, recomputes what it does not. Loading
// runs on a transfer thread (E first, then K/V in the order of need) while the caller's thread
// recomputes.
//
//   ContextReuse reuse(...);
//   while (!reuse.is_recomputed()) reuse.recompute_chunk(512);   // interleave with other work
//   for each layer: is_layer_ready(i), prepare_layer(i), run the suffix through it
//
// Nothing here waits for a load except wait_for_progress() and wait_layer(), and those no longer
// than the load's limits.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kv/kv_cache.h"
#include "model/family.h"
#include "sharing/context_load.h"
#include "sharing/transfer_threads.h"
#include "sharing/translation.h"
#include "store/cache_store.h"

namespace droidspeak {

struct ReuseJob {
  std::shared_ptr<const Variant> receiver;
  std::vector<int32_t> context;                            // a whole number of blocks
  std::shared_ptr<const Translator> translator = nullptr;  // null: raw
  LoadJob load;                                            // covers the context
};

class ContextReuse {
 public:
  // The references outlive the threads; the store is shared with a load that hangs.
  struct Parts {
    Ops& ops;
    KvCache& kv;
    std::shared_ptr<CacheStore> store;
    TransferThreads& threads;
  };

  // `kv` blocks of the job are written by a transfer thread until is_loaded(); they must stay
  // leased until this object is destroyed.
  ContextReuse(const Parts& parts, ReuseJob job);
  ~ContextReuse();  // stops loading; a transfer that hangs is left to the threads' owner

  // Tokens whose E has arrived and that are worth a chunk: while E is arriving, whole chunks only.
  int32_t recomputable_tokens() const;
  // Runs the plan's recomputed layers over the next recomputable tokens of the context. Returns the
  // number of tokens done; 0 when there are none, or nothing is left.
  int32_t recompute_chunk(int32_t max_tokens);

  bool is_recomputed() const {
    return recomputed_tokens_ == static_cast<int32_t>(job_.context.size()) ||
           recompute_ranges_.empty();
  }

  // Whether the layer's K/V of the whole context is on the device.
  bool is_layer_ready(int32_t layer) const;
  // Translates a ready layer, once; before any row is computed that looks at it.
  void prepare_layer(int32_t layer);
  // Waits for the layer and prepares it; false when loading failed.
  bool wait_layer(int32_t layer);
  // Returns when something has arrived or failed, or after a short while.
  void wait_for_progress();

  // True once every reused layer has arrived (not yet translated).
  bool is_loaded() const { return is_cut_ || load_->is_loaded(); }

  // A missing or damaged entry, or a load that stalls: the caller falls back to full prefill, or
  // goes on with what has arrived.
  std::optional<LoadFailure> failure() const { return is_cut_ ? std::nullopt : load_->failure(); }

  // Leading blocks of the context that have arrived with all that the plan takes from them.
  size_t whole_blocks() const { return load_->whole_blocks(); }

  // Ends the load: the context is those blocks from now on, and nothing fails any more.
  void cut_to_whole_blocks();

  bool is_cut() const { return is_cut_; }

  double load_ms() const { return load_->load_ms(); }

  LoadTimes load_times() const { return load_->times(); }

  double elapsed_seconds() const { return load_->elapsed_seconds(); }

  // Of the context.
  int32_t recomputed_tokens() const { return recomputed_tokens_; }

  uint64_t loaded_bytes() const { return load_->loaded_bytes(); }

  Tier slowest_tier() const { return load_->slowest_tier(); }

 private:
  const StoredContext& stored() const { return load_->job().stored; }

  void copy_inputs(int32_t begin, TensorView hidden);

  Ops& ops_;
  KvCache& kv_;
  ReuseJob job_;  // its `load` has gone to load_
  std::vector<LayerRange> recompute_ranges_;
  std::shared_ptr<ContextLoad> load_;  // shared with the transfer thread
  uint64_t seen_progress_ = 0;
  std::vector<bool> is_prepared_;
  Tensor hidden_;
  int32_t recomputed_tokens_ = 0;
  bool is_cut_ = false;
};

}  // namespace droidspeak
