#include "model/architectures/architecture.h"

#include <array>

#include <fmt/format.h>

#include "base/error.h"

namespace droidspeak {

void read_hf_window(const JsonFields& json, ModelConfig& config) {
  config.sliding_window = static_cast<int32_t>(json.get_int_or("sliding_window", 0, 0, INT32_MAX));
  if (!json.has("layer_types")) return;
  const std::string_view expected =
      config.sliding_window > 0 ? "sliding_attention" : "full_attention";
  for (const std::string& type : json.get_strings("layer_types")) {
    if (type != expected)
      json.refuse("layer_types", fmt::format("\"{}\" for every layer", expected));
  }
}

void refuse_hf_window(const JsonFields& json, std::string_view why) {
  if (json.get_bool_or("use_sliding_window", false)) json.refuse("use_sliding_window", why);
  if (!json.has("layer_types")) return;
  for (const std::string& type : json.get_strings("layer_types")) {
    if (type != "full_attention") json.refuse("layer_types", "\"full_attention\" for every layer");
  }
}

void read_gguf_window(const GgufFile& file, std::string_view key, ModelConfig& config) {
  int64_t window = file.get_int_or(key, 0);
  if (window < 0 || window > INT32_MAX) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: key \"{}\" is {}: expected 0 to {}", file.path().string(), key,
                              window, INT32_MAX));
  }
  config.sliding_window = static_cast<int32_t>(window);
}

std::span<const Architecture* const> all_architectures() {
  static const std::array<const Architecture*, 5> all{
      &llama_architecture(), &mistral_architecture(), &qwen2_architecture(), &qwen3_architecture(),
      &phi3_architecture()};
  return all;
}

}  // namespace droidspeak
