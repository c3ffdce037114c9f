#include "model/expert_ffn.h"

#include <algorithm>

namespace droidspeak {

void ExpertFfn::add(const ModelConfig& config,
                    const LayerWeights& weights,
                    int32_t layer,
                    std::span<const BatchSlice> slices,
                    TensorView in,
                    TensorView hidden) {
  const ExpertsConfig& experts = config.experts;
  Device& device = ops_.device();
  const DType dtype = in.dtype;
  const ExpertChoice choice{experts.per_row, experts.weights};
  if (!config.parts.has_expert_bias && !has_lora(slices, layer)) {
    matrices_.clear();
    for (const ExpertWeights& expert : weights.experts)
      matrices_.push_back({expert.gate_up.get(), expert.down.get()});
    if (ops_.add_experts({weights.router.get(), matrices_, choice, config.parts.activation}, in,
                         hidden))
      return;
  }
  TensorView logits = logits_.reshape(device, DType::kF32, in.rows, experts.count);
  TensorView shares = shares_.reshape(device, DType::kF32, in.rows, experts.per_row);
  ops_.linear(*weights.router, in, logits, Accumulate::kOverwrite,
              data_or_null(weights.router_bias));
  chosen_.resize(static_cast<size_t>(in.rows * experts.per_row));
  ops_.choose_experts(logits, choice, chosen_, shares);
  group_by_expert(chosen_, experts.per_row, experts.count, groups_);

  const int64_t places = std::ssize(groups_.rows);
  TensorView gathered = gathered_.reshape(device, dtype, places, in.columns);
  TensorView gate_up = gate_up_.reshape(device, dtype, places, 2 * experts.ffn_dim);
  TensorView activated = activated_.reshape(device, dtype, places, experts.ffn_dim);
  TensorView answers = answers_.reshape(device, dtype, places, hidden.columns);
  adapters_.assign(static_cast<size_t>(in.rows), nullptr);
  for (const BatchSlice& slice : slices)
    std::fill_n(adapters_.begin() + slice.sequence.first_row + slice.base_rows,
                slice.sequence.num_rows - slice.base_rows, slice.adapter);
  ops_.gather_rows(in, groups_.rows, gathered);
  multiply(weights, &ExpertWeights::gate_up, &ExpertWeights::gate_up_bias, gathered, gate_up);
  apply_lora(layer, &ExpertLora::gate_up, gathered, gate_up);
  ops_.gated_activation(gate_up, config.parts.activation, activated);
  multiply(weights, &ExpertWeights::down, &ExpertWeights::down_bias, activated, answers);
  apply_lora(layer, &ExpertLora::down, activated, answers);
  ops_.add_weighted_rows(answers, groups_.places, shares, hidden);
}

bool ExpertFfn::has_lora(std::span<const BatchSlice> slices, int32_t layer) const {
  return std::ranges::any_of(slices, [&](const BatchSlice& slice) {
    return slice.adapter != nullptr && slice.base_rows < slice.sequence.num_rows &&
           !slice.adapter->layers[static_cast<size_t>(layer)].experts.empty();
  });
}

void ExpertFfn::multiply(const LayerWeights& weights,
                         std::unique_ptr<WeightMatrix> ExpertWeights::*matrix,
                         Tensor ExpertWeights::*bias,
                         TensorView in,
                         TensorView out) {
  for (size_t e = 0; e < weights.experts.size(); ++e) {
    const int64_t begin = groups_.begins[e];
    const int64_t end = groups_.begins[e + 1];
    if (begin < end)
      ops_.linear(*(weights.experts[e].*matrix), in.row_range(begin, end),
                  out.row_range(begin, end), Accumulate::kOverwrite,
                  data_or_null(weights.experts[e].*bias));
  }
}

const LoraLinear* ExpertFfn::lora_of(size_t place,
                                     size_t expert,
                                     int32_t layer,
                                     LoraLinear ExpertLora::*which) const {
  const Adapter* adapter = adapters_[static_cast<size_t>(groups_.rows[place])];
  if (adapter == nullptr) return nullptr;
  const std::vector<ExpertLora>& experts = adapter->layers[static_cast<size_t>(layer)].experts;
  if (experts.empty() || !(experts[expert].*which).down) return nullptr;
  return &(experts[expert].*which);
}

void ExpertFfn::apply_lora(int32_t layer,
                           LoraLinear ExpertLora::*which,
                           TensorView in,
                           TensorView out) {
  lora_rows_.clear();
  int64_t ranks = 0;
  for (size_t e = 0; e + 1 < groups_.begins.size(); ++e) {
    for (int64_t place = groups_.begins[e]; place < groups_.begins[e + 1]; ++place) {
      const LoraLinear* lora = lora_of(static_cast<size_t>(place), e, layer, which);
      if (lora == nullptr) continue;
      ranks = std::max(ranks, lora->down->rows());
      const bool follows =
          !lora_rows_.empty() && lora_rows_.back().lora == lora && lora_rows_.back().end == place;
      if (follows) {
        ++lora_rows_.back().end;
      } else {
        lora_rows_.push_back({place, place + 1, lora});
      }
    }
  }
  if (lora_rows_.empty()) return;
  ops_.add_lora(lora_rows_, in, low_rank_.reshape(ops_.device(), in.dtype, in.rows, ranks), out);
}

}  // namespace droidspeak
