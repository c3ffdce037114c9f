// Linear layers that an adapter can correct, and which of them a tensor is for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/file_tensor.h"
#include "model/model_config.h"
#include "model/weights.h"

namespace droidspeak {

// A linear layer that can be corrected: one of the layer's own, or of one of its experts.
struct LinearPlace {
  LoraLinear LoraLayer::*of_layer = nullptr;
  LoraLinear ExpertLora::*of_expert = nullptr;
  int32_t expert = 0;

  bool operator==(const LinearPlace&) const = default;
};

// One linear layer as PEFT names it, and where its output lies in our fused one.
struct AdapterTarget {
  std::string name;  // "self_attn.q_proj"
  LinearPlace linear;
  int32_t first_column;
  int32_t rows;
  int32_t columns;

  bool overlaps(const AdapterTarget& other) const {
    return linear == other.linear && first_column < other.first_column + other.rows &&
           other.first_column < first_column + rows;
  }

  // Whether it is another name for what one or two other targets are.
  bool is_alias() const;
};

std::vector<AdapterTarget> adapter_targets(const ModelConfig& base);

struct AdapterPlace {
  int32_t layer = 0;
  const AdapterTarget* target = nullptr;
  enum class Side { kDown, kUp } side = Side::kDown;

  // "model.layers.3.self_attn.q_proj"
  std::string module() const;
};

// A tensor of an adapter, and where it belongs. Experts, which lie in one tensor, have one each.
struct AdapterTensor {
  FileTensor tensor;
  std::optional<AdapterPlace> place;    // none: it fits no linear layer of the base
  std::vector<int32_t> row_order = {};  // row i is row_order[i] of the file; empty: i
};

// "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight", with or without PEFT's prefix
// and the name of its default adapter.
std::optional<AdapterPlace> peft_place(std::string_view name,
                                       const std::vector<AdapterTarget>& targets);

// These take what they find off the front of `text`.
bool consume(std::string_view& text, std::string_view prefix);
std::optional<int32_t> consume_layer(std::string_view& text);

}  // namespace droidspeak
