// Runs a range of layers over a batch of rows from several sequences. The batch may mix prefill
// chunks, suffixes and single decode rows, and different adapters; a row's result does not depend
// on the others.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kv/kv_cache.h"
#include "model/batch_slice.h"
#include "model/expert_ffn.h"
#include "model/weights.h"

namespace droidspeak {

class Transformer {
 public:
  // `ops` outlives the transformer. Positions reach up to max_positions.
  Transformer(Ops& ops, std::shared_ptr<const Weights> weights, int32_t max_positions);

  const ModelConfig& config() const { return weights_->config; }

  const Weights& weights() const { return *weights_; }

  int32_t max_positions() const { return max_positions_; }

  // Of everything besides weights that shapes what this transformer computes.
  const Digest& configuration() const { return configuration_; }

  // See formula_digest().
  const Digest& formula() const { return formula_; }

  RopeOptions rope_options(int32_t layer) const;

  // hidden: [tokens, d_model] of the ops' activation dtype.
  void embed(std::span<const int32_t> tokens, TensorView hidden);
  // Runs layers [range) in place on `hidden`; writes K/V of every row into `kv` and attends over
  // it. Slices cover the rows of hidden, but for Ops::repeated_rows().
  void forward_layers(LayerRange range,
                      std::span<const BatchSlice> slices,
                      const KvCache& kv,
                      TensorView hidden);
  // The same for the sake of the K/V alone: the range's last layer is left as soon as it has
  // stored them, and `hidden` is no result.
  void forward_to_kv(LayerRange range,
                     std::span<const BatchSlice> slices,
                     const KvCache& kv,
                     TensorView hidden);
  // Final states behind the last norm, as logits are made of them; out: [hidden.rows, d_model] f32.
  void output_states(TensorView hidden, TensorView out);
  // out: [hidden.rows, vocab_size] f32.
  void logits(TensorView hidden, TensorView out);

 private:
  // Returns q; k and v are in the cache.
  TensorView store_kv(int32_t layer,
                      std::span<const BatchSlice> slices,
                      const KvCache& kv,
                      TensorView hidden);
  void attention_block(int32_t layer,
                       std::span<const BatchSlice> slices,
                       const KvLayerView& kv,
                       TensorView qkv,
                       TensorView hidden);

  // in * weights^T with its bias and correction, normed and scaled as the model does it, added to
  // `hidden`.
  struct Branch {
    const WeightMatrix& weights;
    const Tensor& bias;  // empty: none
    LoraLinear LoraLayer::*lora;
    const Tensor& norm;  // empty: none
  };

  void add_branch(const Branch& branch,
                  int32_t layer,
                  std::span<const BatchSlice> slices,
                  TensorView in,
                  TensorView hidden);
  // `in` itself where the norm is empty.
  // `next`: what the rows are multiplied with next, or null.
  TensorView normed(TensorView in, const Tensor& norm, const WeightMatrix* next);
  void ffn_block(int32_t layer, std::span<const BatchSlice> slices, TensorView hidden);
  // The last layer, whose later parts see only the rows that are wanted behind it.
  void output_layer(std::span<const BatchSlice> slices, const KvCache& kv, TensorView hidden);
  void apply_lora(std::span<const BatchSlice> slices,
                  int32_t layer,
                  LoraLinear LoraLayer::*which,
                  TensorView in,
                  TensorView out);

  Ops& ops_;
  std::shared_ptr<const Weights> weights_;
  int32_t max_positions_;
  Digest configuration_;
  Digest formula_;
  Tensor rope_table_;
  Tensor local_rope_table_;  // of layers with a window, where they have their own
  Tensor still_table_;       // turns nothing, for layers without RoPE
  // Scratch, reused from call to call.
  Tensor normed_;
  Tensor qkv_;
  Tensor attended_;
  Tensor gate_up_;
  Tensor activated_;
  Tensor branch_;
  Tensor low_rank_;
  Tensor output_qkv_;
  Tensor output_hidden_;
  Tensor shared_gates_;
  ExpertFfn experts_;
  std::vector<BatchSlice> output_slices_;
  std::vector<SequenceSlice> sequence_slices_;
  std::vector<LoraRows> lora_rows_;
};

}  // namespace droidspeak
