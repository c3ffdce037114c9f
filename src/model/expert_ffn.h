// The FFN of a layer with experts: a router chooses some for each row. Few rows whose experts have
// no adapter may be one operation of the device; else rows are gathered by expert, each expert is
// one product over its rows, and what they give is added by weight.
#pragma once

#include <span>
#include <vector>

#include "model/batch_slice.h"
#include "model/expert_groups.h"
#include "model/weights.h"

namespace droidspeak {

class ExpertFfn {
 public:
  explicit ExpertFfn(Ops& ops) : ops_(ops) {}

  // hidden += the experts' answer to the rows of `in`, corrected by the slices' adapters.
  void add(const ModelConfig& config,
           const LayerWeights& weights,
           int32_t layer,
           std::span<const BatchSlice> slices,
           TensorView in,
           TensorView hidden);

 private:
  // Whether an expert of the layer is corrected for some row.
  bool has_lora(std::span<const BatchSlice> slices, int32_t layer) const;
  // One product for each expert that has rows.
  void multiply(const LayerWeights& weights,
                std::unique_ptr<WeightMatrix> ExpertWeights::*matrix,
                Tensor ExpertWeights::*bias,
                TensorView in,
                TensorView out);
  void apply_lora(int32_t layer, LoraLinear ExpertLora::*which, TensorView in, TensorView out);
  // Null where the rows of the place are of the base, or their adapter leaves this expert alone.
  const LoraLinear* lora_of(size_t place,
                            size_t expert,
                            int32_t layer,
                            LoraLinear ExpertLora::*which) const;

  Ops& ops_;
  ExpertGroups groups_;
  std::vector<ExpertMatrices> matrices_;
  std::vector<int32_t> chosen_;
  std::vector<const Adapter*> adapters_;  // of each row
  std::vector<LoraRows> lora_rows_;
  Tensor logits_;
  Tensor shares_;  // what each choice counts
  Tensor gathered_;
  Tensor gate_up_;
  Tensor activated_;
  Tensor answers_;
  Tensor low_rank_;
};

}  // namespace droidspeak
