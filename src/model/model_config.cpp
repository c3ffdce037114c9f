#include "model/model_config.h"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace droidspeak {
namespace {

// Fields in a fixed order, each with a tag of its type.
class FieldHash {
 public:
  void add(const std::string& text) { hash_.add_field('t', text); }

  void add(std::integral auto value) { hash_.add_field('i', static_cast<uint64_t>(value)); }

  void add(std::floating_point auto value) { add_bytes('f', std::span(&value, 1)); }

  void add(const std::vector<float>& values) { add_bytes('v', std::span(values)); }

  template <class Enum>
  requires std::is_enum_v<Enum>

  void add(Enum value) { hash_.add_field('e', static_cast<uint64_t>(value)); }

  void add(const Rotation& rotation) {
    const auto& [frequencies, attention_factor] = rotation;
    add_all(frequencies, attention_factor);
  }

  void add(const std::vector<int32_t>& values) { add_bytes('w', std::span(values)); }

  void add(const RopeConfig& rope) {
    const auto& [theta, rotary_dim, scaling] = rope;
    add_all(theta, rotary_dim, scaling);
  }

  void add(const std::optional<RopeConfig>& rope) {
    add(rope.has_value());
    if (rope) add(*rope);
  }

  void add(const ModelParts& parts) {
    const auto& [has_qkv_bias, has_output_bias, has_ffn_bias, qk_norm, norms, activation,
                 has_shared_expert, has_expert_bias, has_sinks] = parts;
    add_all(has_qkv_bias, has_output_bias, has_ffn_bias, qk_norm, norms, activation,
            has_shared_expert);
    if (has_expert_bias || has_sinks) add_all(has_expert_bias, has_sinks);
  }

  void add(const ExpertsConfig& experts) {
    const auto& [count, per_row, ffn_dim, weights] = experts;
    add_all(count, per_row, ffn_dim, weights);
  }

  void add(const RopeScaling& scaling) {
    const auto& [kind, factor, low, high, original, short_factors, long_factors, fast, slow, rounds,
                 attention_factor] = scaling;
    add_all(kind, factor, low, high, original, short_factors, long_factors, fast, slow, rounds,
            attention_factor);
  }

  void add(const ModelConfig& config) {
    const auto& [architecture, num_layers, d_model, num_heads, num_kv_heads, head_dim, ffn_dim,
                 vocab_size, max_positions, norm_epsilon, rope, local_rope, unrotated_layers,
                 windows, parts, experts, attention_scale, attention_cap, embedding_scale,
                 residual_scale, logit_scale, logit_cap] = config;
    add_all(architecture, num_layers, d_model, num_heads, num_kv_heads, head_dim, ffn_dim,
            vocab_size, max_positions, norm_epsilon, rope, local_rope, unrotated_layers, windows,
            parts, experts, attention_scale, attention_cap, embedding_scale, residual_scale,
            logit_scale, logit_cap);
  }

  template <class... Fields>
  void add_all(const Fields&... fields) {
    (add(fields), ...);
  }

  Digest finish() { return hash_.finish(); }

 private:
  template <class T>
  void add_bytes(char tag, std::span<T> values) {
    hash_.add_field(tag, std::as_bytes(values));
  }

  Sha256 hash_;
};

}  // namespace

Digest configuration_digest(const ModelConfig& config, const ModelUse& use) {
  FieldHash hash;
  const auto& [precision, max_positions, rounds_activations] = use;
  hash.add_all(config, precision, max_positions, rotation_of(config.rope, max_positions));
  if (rounds_activations) hash.add(rounds_activations);
  return hash.finish();
}

Digest formula_digest(const ModelConfig& config, const ModelUse& use) {
  const int32_t max_positions = use.max_positions;
  ModelConfig formula = config;
  formula.max_positions = 0;
  formula.rope = rope_in_force(config.rope, max_positions);
  if (config.local_rope) formula.local_rope = rope_in_force(*config.local_rope, max_positions);
  FieldHash hash;
  hash.add(formula);
  if (use.rounds_activations) hash.add(use.rounds_activations);
  return hash.finish();
}

namespace {

std::string describe_biases(const ModelParts& parts) {
  std::vector<std::string_view> places;
  if (parts.has_qkv_bias) places.push_back("q, k and v");
  if (parts.has_output_bias) places.push_back("attention's output");
  if (parts.has_ffn_bias) places.push_back("FFN");
  if (parts.has_expert_bias) places.push_back("experts");
  return places.empty() ? "no biases" : fmt::format("biases on {}", fmt::join(places, ", on "));
}

std::string_view describe(Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return "SiLU";
    case Activation::kGelu:
      return "GELU";
    case Activation::kClampedSwish:
      return "clamped SwiGLU";
  }
  return "";
}

std::string describe_parts(const ModelParts& parts) {
  auto describe_norm = [](QkNorm norm) {
    switch (norm) {
      case QkNorm::kNone:
        return "no norms";
      case QkNorm::kPerHead:
        return "norms of heads";
      case QkNorm::kWhole:
        return "norms";
    }
    return "";
  };
  auto placement = [](NormPlacement norms) {
    switch (norms) {
      case NormPlacement::kBefore:
        return "before";
      case NormPlacement::kAfter:
        return "after";
      case NormPlacement::kAround:
        return "before and after";
    }
    return "";
  };
  return fmt::format("{} on q and k, {}, norms {} attention and FFN, {}, {}, {}",
                     describe_norm(parts.qk_norm), describe_biases(parts), placement(parts.norms),
                     describe(parts.activation),
                     parts.has_shared_expert ? "a shared expert" : "no shared expert",
                     parts.has_sinks ? "sinks" : "no sinks");
}

class Comparison {
 public:
  void add(const std::string& what) { text_ += (text_.empty() ? "" : "; ") + what; }

  template <class T>
  void compare(std::string_view what, const T& expected, const T& actual) {
    if (expected == actual) return;
    add(fmt::format("{} is {} where the base has {}", what, actual, expected));
  }

  // Files hold factors with more or fewer digits.
  void compare_close(std::string_view what, float expected, float actual) {
    if (std::abs(expected - actual) > 1e-6f * std::abs(expected)) compare(what, expected, actual);
  }

  // How RoPE is scaled is said in different ways: what comes out counts, at short contexts and at
  // long ones.
  void compare_rope(const RopeConfig& base, const RopeConfig& variant, int32_t max_positions) {
    compare("RoPE theta", base.theta, variant.theta);
    compare("rotary size", base.rotary_dim, variant.rotary_dim);
    if (!text_.empty()) return;
    for (int32_t length : {1, max_positions}) {
      if (is_close(rotation_of(base, length), rotation_of(variant, length))) continue;
      return add(fmt::format(
          "its RoPE scaling turns positions otherwise than the base's (contexts of {})", length));
    }
  }

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace

std::string describe_mismatch(const ModelConfig& base, const ModelConfig& variant) {
  Comparison c;
  c.compare("number of layers", base.num_layers, variant.num_layers);
  c.compare("hidden size", base.d_model, variant.d_model);
  c.compare("number of heads", base.num_heads, variant.num_heads);
  c.compare("number of KV heads", base.num_kv_heads, variant.num_kv_heads);
  c.compare("head size", base.head_dim, variant.head_dim);
  c.compare("FFN size", base.ffn_dim, variant.ffn_dim);
  c.compare("number of experts", base.experts.count, variant.experts.count);
  c.compare("experts of a token", base.experts.per_row, variant.experts.per_row);
  c.compare("size of an expert", base.experts.ffn_dim, variant.experts.ffn_dim);
  if (base.experts.weights != variant.experts.weights)
    c.add("it weighs its experts otherwise than the base (norm_topk_prob)");
  c.compare("vocabulary size", base.vocab_size, variant.vocab_size);
  c.compare_close("norm epsilon", base.norm_epsilon, variant.norm_epsilon);
  if (!(base.parts == variant.parts)) {
    c.add(fmt::format("it has {} where the base has {} ({} and {})", describe_parts(variant.parts),
                      describe_parts(base.parts), variant.architecture, base.architecture));
  }
  c.compare_close("attention scale", base.attention_scale, variant.attention_scale);
  c.compare_close("soft cap of scores", base.attention_cap, variant.attention_cap);
  c.compare_close("embedding scale", base.embedding_scale, variant.embedding_scale);
  c.compare_close("residual scale", base.residual_scale, variant.residual_scale);
  c.compare_close("logit scale", base.logit_scale, variant.logit_scale);
  c.compare_close("soft cap of logits", base.logit_cap, variant.logit_cap);
  if (!c.text().empty()) return c.text();
  std::set<std::pair<const RopeConfig*, const RopeConfig*>> compared;
  for (int32_t layer = 0; layer < base.num_layers && c.text().empty(); ++layer) {
    c.compare(fmt::format("sliding window of layer {}", layer), base.window(layer),
              variant.window(layer));
    if (base.is_rotated(layer) != variant.is_rotated(layer)) {
      c.add(fmt::format("layer {} has {} where the base has {}", layer,
                        variant.is_rotated(layer) ? "RoPE" : "no RoPE",
                        base.is_rotated(layer) ? "it" : "none"));
    }
    const RopeConfig& rope = base.rope_of(layer);
    const RopeConfig& other = variant.rope_of(layer);
    if (compared.insert({&rope, &other}).second)
      c.compare_rope(rope, other, std::max(base.max_positions, variant.max_positions));
  }
  return c.text();
}

}  // namespace droidspeak
