// Runs a range of layers over a batch of rows from several sequences. The batch may mix prefill
// chunks, suffixes and single decode rows, and different adapters; a row's result does not depend
// on the others.
#pragma once

#include <memory>
#include <span>

#include "kv/kv_cache.h"
#include "model/weights.h"

namespace droidspeak {

// Rows of one sequence in a batch. `adapter` null: the base weights alone.
struct BatchSlice {
  SequenceSlice sequence;
  const Adapter* adapter = nullptr;
};

class Transformer {
 public:
  // `ops` outlives the transformer. Positions reach up to max_positions.
  Transformer(Ops& ops, std::shared_ptr<const Weights> weights, int32_t max_positions);

  const ModelConfig& config() const { return weights_->config; }

  const Weights& weights() const { return *weights_; }

  int32_t max_positions() const { return max_positions_; }

  RopeOptions rope_options(int32_t layer) const;

  // hidden: [tokens, d_model] of the ops' activation dtype.
  void embed(std::span<const int32_t> tokens, TensorView hidden);
  // Runs layers [range) in place on `hidden`; writes K/V of every row into `kv` and attends over
  // it. Slices cover the rows of hidden.
  void forward_layers(LayerRange range,
                      std::span<const BatchSlice> slices,
                      const KvCache& kv,
                      TensorView hidden);
  // out: [hidden.rows, vocab_size] f32.
  void logits(TensorView hidden, TensorView out);

 private:
  void attention_block(int32_t layer,
                       std::span<const BatchSlice> slices,
                       const KvCache& kv,
                       TensorView hidden);
  void ffn_block(int32_t layer, std::span<const BatchSlice> slices, TensorView hidden);
  void apply_lora(std::span<const BatchSlice> slices,
                  int32_t layer,
                  LoraLinear LoraLayer::*which,
                  TensorView in,
                  TensorView out);

  Ops& ops_;
  std::shared_ptr<const Weights> weights_;
  int32_t max_positions_;
  Tensor rope_table_;
  // Scratch, reused from call to call.
  Tensor normed_;
  Tensor qkv_;
  Tensor attended_;
  Tensor gate_up_;
  Tensor activated_;
  Tensor low_rank_;
  std::vector<SequenceSlice> sequence_slices_;
  std::vector<LoraRows> lora_rows_;
};

}  // namespace droidspeak
