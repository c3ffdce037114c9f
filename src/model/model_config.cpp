#include "model/model_config.h"

#include <algorithm>
#include <concepts>

#include <fmt/format.h>

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

  void add(const RopeScaling& scaling) {
    const auto& [kind, factor, low, high, original, short_factors, long_factors, fast, slow, rounds,
                 attention_factor] = scaling;
    add_all(kind, factor, low, high, original, short_factors, long_factors, fast, slow, rounds,
            attention_factor);
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
  {
    const auto& [architecture, num_layers, d_model, num_heads, num_kv_heads, head_dim, ffn_dim,
                 vocab_size, max_positions, norm_epsilon, rope_theta, rotary_dim, rope_scaling,
                 sliding_window, activation] = config;
    hash.add_all(architecture, num_layers, d_model, num_heads, num_kv_heads, head_dim, ffn_dim,
                 vocab_size, max_positions, norm_epsilon, rope_theta, rotary_dim, rope_scaling,
                 sliding_window, activation);
  }
  const auto& [precision, max_positions] = use;
  hash.add_all(precision, max_positions, rotation_of(config, max_positions));
  return hash.finish();
}

std::string describe_mismatch(const ModelConfig& base, const ModelConfig& variant) {
  std::string text;
  auto add = [&](const std::string& what) { text += (text.empty() ? "" : "; ") + what; };
  auto compare = [&](std::string_view what, const auto& expected, const auto& actual) {
    if (expected == actual) return;
    add(fmt::format("{} is {} where the base has {}", what, actual, expected));
  };
  compare("architecture", base.architecture, variant.architecture);
  compare("number of layers", base.num_layers, variant.num_layers);
  compare("hidden size", base.d_model, variant.d_model);
  compare("number of heads", base.num_heads, variant.num_heads);
  compare("number of KV heads", base.num_kv_heads, variant.num_kv_heads);
  compare("head size", base.head_dim, variant.head_dim);
  compare("FFN size", base.ffn_dim, variant.ffn_dim);
  compare("vocabulary size", base.vocab_size, variant.vocab_size);
  compare("norm epsilon", base.norm_epsilon, variant.norm_epsilon);
  compare("sliding window", base.sliding_window, variant.sliding_window);
  compare("RoPE theta", base.rope_theta, variant.rope_theta);
  compare("rotary size", base.rotary_dim, variant.rotary_dim);
  if (!text.empty()) return text;
  // Files say in different ways how they scale RoPE: what comes out counts, at short contexts and
  // at long ones.
  for (int32_t length : {1, std::max(base.max_positions, variant.max_positions)}) {
    if (is_close(rotation_of(base, length), rotation_of(variant, length))) continue;
    add(fmt::format("its RoPE scaling turns positions otherwise than the base's (contexts of {})",
                    length));
    break;
  }
  return text;
}

}  // namespace droidspeak
