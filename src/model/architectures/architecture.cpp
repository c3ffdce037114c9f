#include "model/architectures/architecture.h"

#include <array>

#include <fmt/format.h>

#include "base/error.h"
#include "tensor/dequantize.h"

namespace droidspeak {
namespace {

// Transformers 5 keeps theta and scaling together in "rope_parameters"; before, scaling had its own
// "rope_scaling" object.
std::optional<JsonFields> find_rope_object(const JsonFields& json) {
  auto found = json.find_object("rope_scaling");
  return found ? found : json.find_object("rope_parameters");
}

void read_long_rope(const JsonFields& json, const JsonFields& rope, ModelConfig& config) {
  RopeScaling& scaling = config.rope_scaling;
  scaling.kind = RopeScaling::Kind::kLongRope;
  const JsonFields& holder = rope.has("original_max_position_embeddings") ? rope : json;
  scaling.original_max_positions =
      static_cast<int32_t>(holder.get_int("original_max_position_embeddings", 1, INT32_MAX));
  scaling.short_factors = rope.get_floats("short_factor");
  scaling.long_factors = rope.get_floats("long_factor");
  scaling.attention_factor = rope.get_double_or("attention_factor", 0);
  auto expected = static_cast<size_t>(config.rotary_dim / 2);
  if (scaling.short_factors.size() != expected || scaling.long_factors.size() != expected) {
    rope.refuse("short_factor",
                fmt::format("{} numbers in short_factor and in long_factor", expected));
  }
}

}  // namespace

void read_hf_rope_scaling(const JsonFields& json, ModelConfig& config) {
  auto rope = find_rope_object(json);
  if (!rope) return;
  config.rope_theta = rope->get_double_or("rope_theta", config.rope_theta);
  std::string kind = rope->get_string_or("rope_type", rope->get_string_or("type", "default"));
  RopeScaling& scaling = config.rope_scaling;
  if (kind == "default") return;
  if (kind == "linear") {
    scaling.kind = RopeScaling::Kind::kLinear;
    scaling.factor = rope->get_double("factor");
  } else if (kind == "llama3") {
    scaling.kind = RopeScaling::Kind::kLlama3;
    scaling.factor = rope->get_double("factor");
    scaling.low_frequency_factor = rope->get_double("low_freq_factor");
    scaling.high_frequency_factor = rope->get_double("high_freq_factor");
    scaling.original_max_positions =
        static_cast<int32_t>(rope->get_int("original_max_position_embeddings", 1, INT32_MAX));
  } else if (kind == "longrope" || kind == "su") {
    read_long_rope(json, *rope, config);
  } else {
    rope->refuse(rope->has("rope_type") ? "rope_type" : "type",
                 "default, linear, llama3 or longrope");
  }
}

void read_gguf_rope_factors(const GgufFile& file,
                            std::string_view tensor,
                            std::vector<float>& factors) {
  const FileTensor* found = file.find_tensor(tensor);
  if (found == nullptr || found->dtype != DType::kF32 || found->shape.size() != 1) {
    throw Failure(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: tensor \"{}\": expected a vector of f32", file.path().string(), tensor));
  }
  factors.resize(static_cast<size_t>(found->shape[0]));
  dequantize(found->dtype, found->bytes, factors);
}

std::span<const Architecture* const> all_architectures() {
  static const std::array<const Architecture*, 5> all{
      &llama_architecture(), &mistral_architecture(), &qwen2_architecture(), &qwen3_architecture(),
      &phi3_architecture()};
  return all;
}

}  // namespace droidspeak
