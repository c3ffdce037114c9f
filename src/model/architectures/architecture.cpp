#include "model/architectures/architecture.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"

namespace droidspeak {
namespace {

void set_windows(int64_t window,
                 const std::function<bool(int32_t)>& sees_all,
                 ModelConfig& config) {
  if (window == 0) return;
  for (int32_t layer = 0; layer < config.num_layers; ++layer)
    config.windows.push_back(sees_all(layer) ? 0 : static_cast<int32_t>(window));
}

// Also as null.
bool is_mentioned(const JsonFields& json, std::string_view field) {
  return std::ranges::count(json.keys(), field) > 0;
}

std::vector<std::string> read_layer_types(const JsonFields& json, const ModelConfig& config) {
  std::vector<std::string> types = json.get_strings("layer_types");
  if (std::ssize(types) != config.num_layers)
    json.refuse("layer_types", fmt::format("{} entries, one per layer", config.num_layers));
  for (const std::string& type : types) {
    if (type != "full_attention" && type != "sliding_attention")
      json.refuse("layer_types", "\"full_attention\" or \"sliding_attention\" for every layer");
  }
  return types;
}

bool is_called(const Architecture& architecture, std::string_view gguf_name) {
  return architecture.gguf_as == gguf_name ||
         std::ranges::count(architecture.gguf_architectures, gguf_name) > 0;
}

bool share_a_gguf_name(const Architecture& a, const Architecture& b) {
  auto is_of_b = [&](std::string_view name) { return is_called(b, name); };
  return (!a.gguf_as.empty() && is_of_b(a.gguf_as)) ||
         std::ranges::any_of(a.gguf_architectures, is_of_b);
}

}  // namespace

bool may_be_for(std::string_view type, std::string_view name) {
  auto is_of_type = [&](const Architecture* architecture) {
    return std::ranges::any_of(architecture->hf_model_types, [&](std::string_view own) {
      return own == type || own == std::string(type) + "_text";
    });
  };
  auto architectures = all_architectures();
  auto made_for = std::ranges::find_if(architectures, is_of_type);
  auto base = std::ranges::find(architectures, name, &Architecture::name);
  if (made_for == architectures.end() || base == architectures.end()) return true;
  return *made_for == *base || share_a_gguf_name(**made_for, **base);
}

bool no_layer(int32_t) {
  return false;
}

void read_hf_windows(const JsonFields& json,
                     int64_t default_window,
                     const std::function<bool(int32_t)>& sees_all,
                     ModelConfig& config) {
  const int64_t fallback = is_mentioned(json, "sliding_window") ? 0 : default_window;
  const int64_t window = json.get_int_or("sliding_window", fallback, 0, INT32_MAX);
  if (!json.has("layer_types")) return set_windows(window, sees_all, config);
  const std::vector<std::string> types = read_layer_types(json, config);
  auto is_full = [&](int32_t layer) {
    return types[static_cast<size_t>(layer)] == "full_attention";
  };
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    if (window == 0 && !is_full(layer))
      json.refuse("layer_types", "\"full_attention\" for every layer: there is no sliding_window");
  }
  set_windows(window, is_full, config);
}

void read_hf_window(const JsonFields& json, int64_t default_window, ModelConfig& config) {
  read_hf_windows(json, default_window, no_layer, config);
  if (std::ranges::count(config.windows, 0) > 0)
    json.refuse("layer_types", "\"sliding_attention\" for every layer: there is a sliding_window");
}

void refuse_hf_window(const JsonFields& json, std::string_view why) {
  if (json.get_bool_or("use_sliding_window", false)) json.refuse("use_sliding_window", why);
  if (!json.has("layer_types")) return;
  for (const std::string& type : json.get_strings("layer_types")) {
    if (type != "full_attention") json.refuse("layer_types", "\"full_attention\" for every layer");
  }
}

void read_gguf_windows(const GgufFile& file,
                       std::string_view prefix,
                       int64_t default_window,
                       const std::function<bool(int32_t)>& sees_all,
                       ModelConfig& config) {
  const std::string key = fmt::format("{}.attention.sliding_window", prefix);
  int64_t window = file.get_int_or(key, default_window);
  if (window < 0 || window > INT32_MAX) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: key \"{}\" is {}: expected 0 to {}", file.path().string(), key,
                              window, INT32_MAX));
  }
  const std::vector<int64_t>* pattern = gguf_window_pattern(file, prefix);
  const std::string pattern_key = key + "_pattern";
  if (pattern == nullptr && file.find(pattern_key) != nullptr) {  // a period
    const int32_t period = read_gguf_size(file, pattern_key);
    return set_windows(
        window, [&](int32_t layer) { return (layer + 1) % period == 0; }, config);
  }
  if (pattern == nullptr) return set_windows(window, sees_all, config);
  if (std::ssize(*pattern) != config.num_layers) {
    throw Failure(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: key \"{}_pattern\" has {} values: expected one for each of {} layers",
                    file.path().string(), key, pattern->size(), config.num_layers));
  }
  set_windows(
      window, [&](int32_t layer) { return (*pattern)[static_cast<size_t>(layer)] == 0; }, config);
}

const std::vector<int64_t>* gguf_window_pattern(const GgufFile& file, std::string_view prefix) {
  const GgufValue* value = file.find(fmt::format("{}.attention.sliding_window_pattern", prefix));
  return value == nullptr ? nullptr : std::get_if<std::vector<int64_t>>(value);
}

float read_hf_factor(const JsonFields& json, std::string_view field, double fallback) {
  const auto value = static_cast<float>(json.get_double_or(field, fallback));
  if (!std::isfinite(value) || value < 0 || (value == 0 && json.has(field)))
    json.refuse(field, "a positive number");
  return value;
}

float read_hf_cap(const JsonFields& json, std::string_view field, double fallback) {
  return read_hf_factor(json, field, is_mentioned(json, field) ? 0 : fallback);
}

float read_gguf_factor(const GgufFile& file, const std::string& key, double fallback) {
  const auto value = static_cast<float>(file.get_double_or(key, fallback));
  if (!std::isfinite(value) || value < 0) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: key \"{}\" is {}: expected a positive number",
                              file.path().string(), key, value));
  }
  return value == 0 ? static_cast<float>(fallback) : value;
}

int32_t read_expert_count(const JsonFields& json, std::string_view field) {
  return static_cast<int32_t>(json.get_int(field, 1, 1 << 20));
}

int32_t read_gguf_size(const GgufFile& file, const std::string& key) {
  const int64_t size = file.get_int(key);
  if (size < 1 || size > 1 << 20) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: key \"{}\" is {}: expected 1 to {}", file.path().string(), key,
                              size, 1 << 20));
  }
  return static_cast<int32_t>(size);
}

void read_gguf_experts(const GgufFile& file, std::string_view prefix, ModelConfig& config) {
  auto key = [&](std::string_view suffix) { return fmt::format("{}.{}", prefix, suffix); };
  const std::string size = key("expert_feed_forward_length");
  config.experts = {
      .count = read_gguf_size(file, key("expert_count")),
      .per_row = read_gguf_size(file, key("expert_used_count")),
      .ffn_dim = file.find(size) == nullptr ? config.ffn_dim : read_gguf_size(file, size)};
  config.ffn_dim = 0;
}

std::span<const Architecture* const> all_architectures() {
  static const std::array all{
      &llama_architecture(),     &mistral_architecture(), &qwen2_architecture(),
      &qwen3_architecture(),     &phi3_architecture(),    &gemma2_architecture(),
      &gemma3_architecture(),    &granite_architecture(), &olmo2_architecture(),
      &olmo3_architecture(),     &mixtral_architecture(), &qwen2_moe_architecture(),
      &qwen3_moe_architecture(), &smollm3_architecture(), &gpt_oss_architecture()};
  return all;
}

}  // namespace droidspeak
