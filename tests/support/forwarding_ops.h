// For tests: operations that are another's, so that a test changes or notes those it is about.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "ops/ops.h"

namespace droidspeak {

class ForwardingOps : public Ops {
 public:
  explicit ForwardingOps(Ops& inner) : inner_(inner) {}

  Device& device() override { return inner_.device(); }

  DType activation_dtype() const override { return inner_.activation_dtype(); }

  int32_t prefill_rows() const override { return inner_.prefill_rows(); }

  bool takes_fp8() const override { return inner_.takes_fp8(); }

  std::unique_ptr<WeightMatrix> pack(std::span<const MatrixPart> parts,
                                     Precision precision) override {
    return inner_.pack(parts, precision);
  }

  void embed(const WeightMatrix& table, std::span<const int32_t> tokens, TensorView out) override {
    inner_.embed(table, tokens, out);
  }

  void expect_product(const WeightMatrix& weights, TensorView in) override {
    inner_.expect_product(weights, in);
  }

  void linear(const WeightMatrix& weights,
              TensorView in,
              TensorView out,
              Accumulate accumulate,
              const float* bias) override {
    inner_.linear(weights, in, out, accumulate, bias);
  }

  void rms_norm(TensorView in, const float* weight, float epsilon, TensorView out) override {
    inner_.rms_norm(in, weight, epsilon, out);
  }

  void gated_activation(TensorView in, Activation activation, TensorView out) override {
    inner_.gated_activation(in, activation, out);
  }

  void scale(TensorView rows, float factor, float soft_cap) override {
    inner_.scale(rows, factor, soft_cap);
  }

  void add_scaled(TensorView in, float factor, TensorView out) override {
    inner_.add_scaled(in, factor, out);
  }

  void choose_experts(TensorView logits,
                      const ExpertChoice& choice,
                      std::span<int32_t> experts,
                      TensorView weights) override {
    inner_.choose_experts(logits, choice, experts, weights);
  }

  void gather_rows(TensorView in, std::span<const int32_t> rows, TensorView out) override {
    inner_.gather_rows(in, rows, out);
  }

  void add_weighted_rows(TensorView in,
                         std::span<const int32_t> places,
                         TensorView weights,
                         TensorView out) override {
    inner_.add_weighted_rows(in, places, weights, out);
  }

  void gate_rows(TensorView gates, TensorView rows) override { inner_.gate_rows(gates, rows); }

  void rotate_and_store(TensorView qkv,
                        const RopeOptions& options,
                        std::span<const SequenceSlice> slices,
                        const KvLayerView& kv) override {
    inner_.rotate_and_store(qkv, options, slices, kv);
  }

  void attention(TensorView qkv,
                 const AttentionOptions& options,
                 std::span<const SequenceSlice> slices,
                 const KvLayerView& kv,
                 TensorView out) override {
    inner_.attention(qkv, options, slices, kv, out);
  }

  void add_attention_mass(TensorView qkv,
                          const AttentionOptions& options,
                          std::span<const SequenceSlice> slices,
                          size_t which,
                          const KvLayerView& kv,
                          TensorView sums) override {
    inner_.add_attention_mass(qkv, options, slices, which, kv, sums);
  }

  void translate_kv(const LowRankMap& map,
                    const RopeOptions& rope,
                    const SequenceSlice& range,
                    const KvLayerView& kv) override {
    inner_.translate_kv(map, rope, range, kv);
  }

  void translate_rows(const LowRankMap& map, TensorView rows) override {
    inner_.translate_rows(map, rows);
  }

  void copy(TensorView in, TensorView out) override { inner_.copy(in, out); }

  void divergence(TensorView reference, TensorView logits, RowDivergence* out) override {
    inner_.divergence(reference, logits, out);
  }

  void read_kv(const RopeOptions& rope,
               const SequenceSlice& range,
               const KvLayerView& kv,
               TensorView out) override {
    inner_.read_kv(rope, range, kv, out);
  }

  void add_normal_equations(TensorView x, TensorView y, TensorView sums) override {
    inner_.add_normal_equations(x, y, sums);
  }

  std::vector<Result<LowRankFit>> fit_low_rank(std::span<const LowRankProblem> problems) override {
    return inner_.fit_low_rank(problems);
  }

  void argmax(TensorView in, std::span<int32_t> out) override { inner_.argmax(in, out); }

 private:
  Ops& inner_;
};

}  // namespace droidspeak
