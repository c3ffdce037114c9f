// One context of a (sender, receiver) pair under test: the sender's caches, the receiver's own, the
// translated ones and a recomputed block lie side by side in the K/V memory, so that any plan can
// be tried by running only its suffix.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "kv/kv_cache.h"
#include "model/family.h"
#include "profiler/suffix_scorer.h"
#include "profiler/tried_plan.h"
#include "sharing/translation.h"

namespace droidspeak {

struct ModelPair {
  Ops& ops;
  KvCache& kv;
  std::shared_ptr<const Variant> sender;
  std::shared_ptr<const Variant> receiver;

  int32_t num_layers() const { return kv.layout().num_layers; }
};

// Device memory that one context after the other uses.
struct ContextScratch {
  std::map<int32_t, Tensor> inputs;  // the sender's E, [tokens, d_model] by layer
  Tensor sender;
  Tensor receiver;
};

class ContextTrial {
 public:
  // `context`: a whole number of blocks. Throws Failure(kExhausted) when the K/V memory cannot hold
  // it several times. `scratch` serves one context at a time.
  ContextTrial(const ModelPair& pair, ContextScratch& scratch, std::span<const int32_t> context);

  int32_t num_tokens() const { return static_cast<int32_t>(context_.size()); }

  // What is known of a layer while both models read it: inputs before it runs, K/V after.
  struct LayerVisit {
    std::function<void(int32_t layer, TensorView sender, TensorView receiver)> inputs;
    std::function<void(int32_t layer, const BlockTable& sender, const BlockTable& receiver)>
        outputs;
  };

  // Both models read the context side by side. E is kept at `captured` layers.
  void read_both(std::span<const int32_t> captured, const LayerVisit& visit);
  // The sender reads the context alone; the receiver runs only its first `receiver_layers`.
  void read_sender(std::span<const int32_t> captured, int32_t receiver_layers);

  // Translates a copy of the sender's K/V, all layers.
  void translate(const Translator& translator);
  // Recomputes layers [range) from the sender's E at range.begin; `translator` null: raw E. The
  // block stays beside those of other starts until forget_recomputed().
  void recompute(LayerRange range, const Translator* translator);

  void forget_recomputed() { recomputed_.clear(); }

  // A copy of the K/V that a plan's layers leave, to read tokens into that are looked at. It stays
  // until forget_looked_at(), and stands for the plan with its tokens.
  const BlockTable& copy_for_look(const TriedPlan& tried);

  void forget_looked_at() { looked_at_.clear(); }

  // Tokens read through all layers on top of other work.
  void count_tokens(int64_t tokens) { layer_tokens_ += tokens * pair_.num_layers(); }

  std::span<const int32_t> tokens() const { return context_; }

  // Whose K/V each layer of a plan reads. Recomputed layers from b on are those of recompute();
  // with b == a they are the receiver's own.
  ContextMixture mixture(const TriedPlan& tried) const;
  ContextMixture full() const;
  // The receiver's own caches but for one layer.
  ContextMixture only_reused(int32_t layer) const;

  // Context work so far: tokens times layers.
  int64_t layer_tokens() const { return layer_tokens_; }

 private:
  void run_layers(const Variant& variant,
                  LayerRange range,
                  const BlockTable& table,
                  TensorView hidden);
  void keep_input(int32_t layer, TensorView hidden);
  void reserve(BlockTable& table);
  void copy_layer(int32_t layer, std::span<const int32_t> from, std::span<const int32_t> to);

  ModelPair pair_;
  ContextScratch& scratch_;
  std::vector<int32_t> context_;
  BlockTable sender_;
  BlockTable receiver_;
  BlockTable translated_;
  std::map<std::pair<bool, int32_t>, BlockTable> recomputed_;  // by (translated, first layer)
  std::map<TriedPlan, BlockTable> looked_at_;
  std::set<int32_t> captured_;  // layers whose E is kept
  int64_t layer_tokens_ = 0;
};

}  // namespace droidspeak
