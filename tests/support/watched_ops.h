// Operations of the CPU that note what they are asked for: how many rows attention sees, which rows
// are corrected together, what is queued to be repeated.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "ops/ops.h"

namespace droidspeak {

class WatchedOps final : public Ops {
 public:
  explicit WatchedOps(Device& device) : ops_(make_cpu_ops(device, 1)) {}

  std::vector<int64_t> attention_rows;                              // of each call
  std::vector<std::vector<std::pair<int64_t, int64_t>>> lora_rows;  // of each call, its ranges
  int num_repeats = 0;
  int num_linear = 0;
  // As a device that takes experts in one operation, of which nothing is computed here.
  bool takes_experts = false;
  std::vector<size_t> experts_taken;  // how many experts each call has

  Device& device() override { return ops_->device(); }

  DType activation_dtype() const override { return ops_->activation_dtype(); }

  int32_t prefill_rows() const override { return ops_->prefill_rows(); }

  std::unique_ptr<WeightMatrix> pack(std::span<const MatrixPart> parts,
                                     Precision precision) override {
    return ops_->pack(parts, precision);
  }

  void embed(const WeightMatrix& table, std::span<const int32_t> tokens, TensorView out) override {
    ops_->embed(table, tokens, out);
  }

  void linear(const WeightMatrix& weights,
              TensorView in,
              TensorView out,
              Accumulate accumulate,
              const float* bias) override {
    ++num_linear;
    ops_->linear(weights, in, out, accumulate, bias);
  }

  void add_lora(std::span<const LoraRows> ranges,
                TensorView in,
                TensorView low,
                TensorView out) override {
    auto& noted = lora_rows.emplace_back();
    for (const LoraRows& range : ranges) noted.emplace_back(range.begin, range.end);
    ops_->add_lora(ranges, in, low, out);
  }

  void rms_norm(TensorView in, const float* weight, float epsilon, TensorView out) override {
    ops_->rms_norm(in, weight, epsilon, out);
  }

  void gated_activation(TensorView in, Activation activation, TensorView out) override {
    ops_->gated_activation(in, activation, out);
  }

  void scale(TensorView rows, float factor, float soft_cap) override {
    ops_->scale(rows, factor, soft_cap);
  }

  void add_scaled(TensorView in, float factor, TensorView out) override {
    ops_->add_scaled(in, factor, out);
  }

  void choose_experts(TensorView logits,
                      const ExpertChoice& choice,
                      std::span<int32_t> experts,
                      TensorView weights) override {
    ops_->choose_experts(logits, choice, experts, weights);
  }

  bool add_experts(const ExpertLayer& layer, TensorView, TensorView) override {
    experts_taken.push_back(layer.experts.size());
    return takes_experts;
  }

  void gather_rows(TensorView in, std::span<const int32_t> rows, TensorView out) override {
    ops_->gather_rows(in, rows, out);
  }

  void add_weighted_rows(TensorView in,
                         std::span<const int32_t> places,
                         TensorView weights,
                         TensorView out) override {
    ops_->add_weighted_rows(in, places, weights, out);
  }

  void gate_rows(TensorView gates, TensorView rows) override { ops_->gate_rows(gates, rows); }

  void rotate_and_store(TensorView qkv,
                        const RopeOptions& options,
                        std::span<const SequenceSlice> slices,
                        const KvLayerView& kv) override {
    ops_->rotate_and_store(qkv, options, slices, kv);
  }

  void attention(TensorView qkv,
                 const AttentionOptions& options,
                 std::span<const SequenceSlice> slices,
                 const KvLayerView& kv,
                 TensorView out) override {
    attention_rows.push_back(out.rows);
    ops_->attention(qkv, options, slices, kv, out);
  }

  void add_attention_mass(TensorView qkv,
                          const AttentionOptions& options,
                          std::span<const SequenceSlice> slices,
                          size_t which,
                          const KvLayerView& kv,
                          TensorView sums) override {
    ops_->add_attention_mass(qkv, options, slices, which, kv, sums);
  }

  void translate_kv(const LowRankMap& map,
                    const RopeOptions& rope,
                    const SequenceSlice& range,
                    const KvLayerView& kv) override {
    ops_->translate_kv(map, rope, range, kv);
  }

  void translate_rows(const LowRankMap& map, TensorView rows) override {
    ops_->translate_rows(map, rows);
  }

  void copy(TensorView in, TensorView out) override { ops_->copy(in, out); }

  void divergence(TensorView reference, TensorView logits, RowDivergence* out) override {
    ops_->divergence(reference, logits, out);
  }

  void read_kv(const RopeOptions& rope,
               const SequenceSlice& range,
               const KvLayerView& kv,
               TensorView out) override {
    ops_->read_kv(rope, range, kv, out);
  }

  void add_normal_equations(TensorView x, TensorView y, TensorView sums) override {
    ops_->add_normal_equations(x, y, sums);
  }

  std::vector<Result<LowRankFit>> fit_low_rank(std::span<const LowRankProblem> problems) override {
    return ops_->fit_low_rank(problems);
  }

  void argmax(TensorView in, std::span<int32_t> out) override { ops_->argmax(in, out); }

  void repeat(const std::function<void()>& queue) override {
    ++num_repeats;
    queue();
  }

 private:
  const std::unique_ptr<Ops> ops_;
};

}  // namespace droidspeak
