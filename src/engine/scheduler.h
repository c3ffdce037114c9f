// What runs in this step. Decode rows come first, one per sequence that generates or drafts; then
// prefill, oldest first, within the step's token budget. When a sequence cannot grow, the youngest
// one gives its blocks back, so the oldest always makes progress.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/sequence.h"
#include "kv/block_pool.h"

namespace droidspeak {

struct Step {
  struct Work {
    Sequence* sequence = nullptr;
    int32_t num_tokens = 0;  // without the sequence's drafts
  };

  std::vector<Work> rows = {};        // through all layers, the sequences' next ones
  std::vector<Work> recomputes = {};  // through the recomputed layers of a reused context
  std::vector<Work> follows = {};     // through the layers that have been loaded by now
  std::vector<std::unique_ptr<Sequence>> preempted = {};  // without blocks; wait again

  bool is_empty() const { return rows.empty() && recomputes.empty() && follows.empty(); }
};

struct SchedulerOptions {
  int32_t chunk_tokens = 512;
  int32_t num_layers = 1;
};

// Drafts of all sequences in a step: beyond some rows a step is no longer bound by memory.
inline constexpr int32_t kMaxDraftRows = 16;

class Scheduler {
 public:
  // `pool` outlives the scheduler.
  Scheduler(BlockPool& pool, const SchedulerOptions& options) : pool_(pool), options_(options) {}

  // The blocks of the sequence cover its tokens.
  void add(std::unique_ptr<Sequence> sequence);
  // A sequence whose loads are in flight is left out unless nothing else can run: then its next
  // rows follow the loads layer by layer. Empty when everybody waits for loads.
  Step next_step();
  std::vector<std::unique_ptr<Sequence>> remove_if(
      const std::function<bool(const Sequence&)>& is_gone);

  // Oldest first.
  std::span<const std::unique_ptr<Sequence>> running() const { return running_; }

  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }

  // Panics unless the sequences' blocks are all that the pool has given out and cover what was
  // computed.
  void check_integrity() const;

 private:
  void add_decodes(Step& step);
  void add_prefills(Step& step);
  void add_follow(Step& step);
  bool grow(size_t index, Step& step);
  void draft(Sequence& sequence);

  BlockPool& pool_;
  SchedulerOptions options_;
  std::vector<std::unique_ptr<Sequence>> running_;  // ascending ids
  int32_t num_draft_rows_ = 0;                      // in this step
};

}  // namespace droidspeak
