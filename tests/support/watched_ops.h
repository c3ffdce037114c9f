// Operations of the CPU that note what they are asked for: how many rows attention sees, of which
// slices its mass is added up, which rows are corrected together, what is queued to be repeated.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "support/forwarding_ops.h"

namespace droidspeak {

class WatchedOps final : public ForwardingOps {
 public:
  explicit WatchedOps(Device& device) : WatchedOps(make_cpu_ops(device, 1)) {}

  std::vector<int64_t> attention_rows;                              // of each call
  std::vector<SequenceSlice> mass_slices;                           // of each call
  std::vector<std::vector<std::pair<int64_t, int64_t>>> lora_rows;  // of each call, its ranges
  int num_repeats = 0;
  int num_linear = 0;
  // As a device that takes experts in one operation, of which nothing is computed here.
  bool takes_experts = false;
  std::vector<size_t> experts_taken;  // how many experts each call has

  void linear(const WeightMatrix& weights,
              TensorView in,
              TensorView out,
              Accumulate accumulate,
              const float* bias) override {
    ++num_linear;
    ForwardingOps::linear(weights, in, out, accumulate, bias);
  }

  void add_lora(std::span<const LoraRows> ranges,
                TensorView in,
                TensorView low,
                TensorView out) override {
    auto& noted = lora_rows.emplace_back();
    for (const LoraRows& range : ranges) noted.emplace_back(range.begin, range.end);
    ops_->add_lora(ranges, in, low, out);
  }

  bool add_experts(const ExpertLayer& layer, TensorView, TensorView) override {
    experts_taken.push_back(layer.experts.size());
    return takes_experts;
  }

  void attention(TensorView qkv,
                 const AttentionOptions& options,
                 std::span<const SequenceSlice> slices,
                 const KvLayerView& kv,
                 TensorView out) override {
    attention_rows.push_back(out.rows);
    ForwardingOps::attention(qkv, options, slices, kv, out);
  }

  void add_attention_mass(TensorView qkv,
                          const AttentionOptions& options,
                          std::span<const SequenceSlice> slices,
                          size_t which,
                          const KvLayerView& kv,
                          TensorView sums) override {
    mass_slices.push_back(slices[which]);
    ForwardingOps::add_attention_mass(qkv, options, slices, which, kv, sums);
  }

  void repeat(const std::function<void()>& queue) override {
    ++num_repeats;
    queue();
  }

 private:
  explicit WatchedOps(std::unique_ptr<Ops> ops) : ForwardingOps(*ops), ops_(std::move(ops)) {}

  const std::unique_ptr<Ops> ops_;
};

}  // namespace droidspeak
