#include "model/adapter_targets.h"

#include <charconv>
#include <utility>

#include <fmt/format.h>

namespace droidspeak {
namespace {

// gate, up and down of an FFN of this size.
struct FfnNames {
  std::string gate;
  std::string up;
  std::string down;
};

void add_ffn(const FfnNames& names,
             const LinearPlace& gate_up,
             const LinearPlace& down,
             std::pair<int32_t, int32_t> sizes,
             std::vector<AdapterTarget>& out) {
  const auto [ffn_dim, d_model] = sizes;
  out.push_back({names.gate, gate_up, 0, ffn_dim, d_model});
  out.push_back({names.up, gate_up, ffn_dim, ffn_dim, d_model});
  out.push_back({names.down, down, 0, d_model, ffn_dim});
}

// Experts are called as Qwen or as Mixtral does it.
void add_experts(const ModelConfig& c, std::vector<AdapterTarget>& out) {
  for (int32_t e = 0; e < c.experts.count; ++e) {
    const LinearPlace gate_up{.of_expert = &ExpertLora::gate_up, .expert = e};
    const LinearPlace down{.of_expert = &ExpertLora::down, .expert = e};
    const std::pair sizes{c.experts.ffn_dim, c.d_model};
    const std::string qwen = fmt::format("mlp.experts.{}.", e);
    add_ffn({qwen + "gate_proj", qwen + "up_proj", qwen + "down_proj"}, gate_up, down, sizes, out);
    out.push_back({qwen + "gate_up_proj", gate_up, 0, 2 * c.experts.ffn_dim, c.d_model});
    const std::string mixtral = fmt::format("block_sparse_moe.experts.{}.", e);
    add_ffn({mixtral + "w1", mixtral + "w3", mixtral + "w2"}, gate_up, down, sizes, out);
  }
}

}  // namespace

std::vector<AdapterTarget> adapter_targets(const ModelConfig& c) {
  int32_t q = c.q_columns();
  int32_t kv = c.kv_columns();
  const LinearPlace qkv{.of_layer = &LoraLayer::qkv};
  const LinearPlace gate_up{.of_layer = &LoraLayer::gate_up};
  std::vector<AdapterTarget> targets = {
      {"self_attn.q_proj", qkv, 0, q, c.d_model},
      {"self_attn.k_proj", qkv, q, kv, c.d_model},
      {"self_attn.v_proj", qkv, q + kv, kv, c.d_model},
      {"self_attn.qkv_proj", qkv, 0, q + 2 * kv, c.d_model},
      {"self_attn.o_proj", {.of_layer = &LoraLayer::output}, 0, c.d_model, q}};
  if (c.ffn_dim > 0) {
    const std::string module = c.parts.has_shared_expert ? "mlp.shared_expert." : "mlp.";
    add_ffn({module + "gate_proj", module + "up_proj", module + "down_proj"}, gate_up,
            {.of_layer = &LoraLayer::down}, {c.ffn_dim, c.d_model}, targets);
    targets.push_back({module + "gate_up_proj", gate_up, 0, 2 * c.ffn_dim, c.d_model});
  }
  add_experts(c, targets);
  return targets;
}

bool consume(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

std::optional<int32_t> consume_layer(std::string_view& text) {
  int32_t layer = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), layer);
  auto length = static_cast<size_t>(end - text.data());
  bool is_number =
      error == std::errc() && text.front() != '-' && (length == 1 || text.front() != '0');
  if (!is_number) return std::nullopt;
  text.remove_prefix(length);
  return layer;
}

std::optional<AdapterPlace> peft_place(std::string_view name,
                                       const std::vector<AdapterTarget>& targets) {
  AdapterPlace place;
  consume(name, "base_model.model.");
  if (!consume(name, "model.layers.")) return std::nullopt;
  auto layer = consume_layer(name);
  if (!layer || !consume(name, ".")) return std::nullopt;
  place.layer = *layer;
  for (const AdapterTarget& target : targets) {
    if (name.starts_with(target.name) && name.substr(target.name.size()).starts_with(".lora_"))
      place.target = &target;
  }
  if (place.target == nullptr) return std::nullopt;
  name.remove_prefix(place.target->name.size());
  if (consume(name, ".lora_B")) {
    place.side = AdapterPlace::Side::kUp;
  } else if (!consume(name, ".lora_A")) {
    return std::nullopt;
  }
  consume(name, ".default");
  return name == ".weight" ? std::optional(place) : std::nullopt;
}

std::string AdapterPlace::module() const {
  return fmt::format("model.layers.{}.{}", layer, target->name);
}

bool AdapterTarget::is_alias() const {
  return name.ends_with("qkv_proj") || name.ends_with("gate_up_proj") ||
         name.starts_with("block_sparse_moe.");
}

}  // namespace droidspeak
