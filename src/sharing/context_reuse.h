// Partial prefill of one context: loads what the plan reuses, recomputes what it does not. Loading
// runs on a transfer thread (E first, then K/V in the order of need) while the caller's thread
// recomputes.
//
//   ContextReuse reuse(...);
//   while (!reuse.is_recomputed()) reuse.recompute_chunk(512);   // interleave with other work
//   while (!reuse.is_loaded()) ...;                              // or wait_layer(i) before layer i
//   then run the suffix through all layers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kv/kv_cache.h"
#include "model/family.h"
#include "sharing/reuse_plan.h"
#include "sharing/translation.h"
#include "store/cache_store.h"

namespace droidspeak {

struct ReuseJob {
  std::shared_ptr<const Variant> receiver;
  std::vector<int32_t> context;     // a whole number of blocks
  std::vector<Digest> sender_keys;  // one per block
  ReusePlan plan;
  std::shared_ptr<const Translator> translator;  // null: raw
  std::vector<int32_t> blocks;                   // the receiver's block table, covers the context
};

class ContextReuse {
 public:
  // All references outlive the object. `kv` blocks of the job are written by the transfer thread
  // until is_loaded(); the job's blocks must stay leased until this object is destroyed.
  ContextReuse(Ops& ops, KvCache& kv, CacheStore& store, ReuseJob job);
  ~ContextReuse();  // stops loading

  // Runs the plan's recomputed layers over the next tokens of the context; waits for their E.
  // Returns the number of tokens done, 0 when finished or failed.
  int32_t recompute_chunk(int32_t max_tokens);

  bool is_recomputed() const {
    return recomputed_tokens_ == static_cast<int32_t>(job_.context.size()) ||
           recompute_ranges_.empty();
  }

  // Waits for the layer's K/V and translates it; false when loading failed. Layers that the plan
  // recomputes are ready at once.
  bool wait_layer(int32_t layer);
  // True once every reused layer has arrived (not yet translated); never waits.
  bool is_loaded() const;
  // A missing or damaged entry: the caller falls back to full prefill. Empty: no failure.
  std::string failure() const;

  double load_ms() const;  // wall time of the transfer thread

  double recompute_ms() const { return recompute_ms_; }

  uint64_t loaded_bytes() const;
  Tier slowest_tier() const;

 private:
  struct Loading;
  void load_all();

  Ops& ops_;
  KvCache& kv_;
  CacheStore& store_;
  ReuseJob job_;
  std::vector<LayerRange> recompute_ranges_;
  std::vector<int32_t> load_order_;
  std::unique_ptr<Loading> loading_;
  std::vector<bool> is_translated_;
  Tensor hidden_;
  int32_t recomputed_tokens_ = 0;
  double recompute_ms_ = 0;
};

}  // namespace droidspeak
