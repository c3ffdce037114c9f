#include "model/read_rope.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace droidspeak {
namespace {

using Kind = RopeScaling::Kind;

// YaRN's attention factor: `m` times the logarithm of how far a context is stretched.
double yarn_magnitude(double factor, double m) {
  return factor <= 1 ? 1 : 0.1 * m * std::log(factor) + 1;
}

double yarn_attention_factor(double factor, double mscale, double mscale_all_dim) {
  if (mscale == 0 || mscale_all_dim == 0) return yarn_magnitude(factor, 1);
  return yarn_magnitude(factor, mscale) / yarn_magnitude(factor, mscale_all_dim);
}

double long_rope_attention_factor(double factor, int32_t original_positions) {
  return factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(original_positions));
}

int32_t rotary_dim_of(const JsonFields& json, int32_t head_dim) {
  const double share = json.get_double_or("partial_rotary_factor", 1);
  if (!(share > 0 && share <= 1)) json.refuse("partial_rotary_factor", "more than 0 and at most 1");
  return static_cast<int32_t>(head_dim * share);
}

// The scaling object of config.json. Transformers 5 keeps theta and scaling together in
// "rope_parameters"; before, scaling had its own "rope_scaling" object.
class HfRope {
 public:
  HfRope(const JsonFields& json, const JsonFields& rope, const ModelConfig& config, RopeConfig& out)
      : json_(json), rope_(rope), config_(config), out_(out), scaling_(out.scaling) {}

  void read() {
    out_.theta = rope_.get_double_or("rope_theta", out_.theta);
    if (rope_.has("partial_rotary_factor"))
      out_.rotary_dim = rotary_dim_of(rope_, config_.head_dim);
    const std::string_view field = rope_.has("rope_type") ? "rope_type" : "type";
    std::string kind = rope_.get_string_or(field, "default");
    if (kind == "default") return only({});
    if (kind == "dynamic") return read_dynamic();
    if (kind == "linear") return read_linear();
    if (kind == "llama3") return read_llama3();
    if (kind == "yarn") return read_yarn();
    if (kind == "longrope" || kind == "su") return read_long_rope();
    rope_.refuse(field, "default, dynamic, linear, llama3, longrope or yarn");
  }

 private:
  // It stretches what lies beyond max_position_embeddings, where nothing is served.
  void read_dynamic() {
    only({"factor"});
    if (!(rope_.get_double("factor") > 0)) rope_.refuse("factor", "more than 0");
  }

  void read_linear() {
    only({"factor"});
    scaling_.kind = Kind::kLinear;
    scaling_.factor = rope_.get_double("factor");
  }

  void read_llama3() {
    only({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"});
    scaling_.kind = Kind::kLlama3;
    scaling_.factor = rope_.get_double("factor");
    scaling_.low_frequency_factor = rope_.get_double("low_freq_factor");
    scaling_.high_frequency_factor = rope_.get_double("high_freq_factor");
    if (!(scaling_.low_frequency_factor > 0)) rope_.refuse("low_freq_factor", "more than 0");
    if (!(scaling_.high_frequency_factor > scaling_.low_frequency_factor))
      rope_.refuse("high_freq_factor", "more than low_freq_factor");
    read_original_positions();
  }

  void read_yarn() {
    only({"factor", "original_max_position_embeddings", "attention_factor", "beta_fast",
          "beta_slow", "mscale", "mscale_all_dim", "truncate", "finetuned"});
    scaling_.kind = Kind::kYarn;
    read_original_positions();
    if (!rope_.has("factor") && scaling_.original_max_positions == config_.max_positions)
      rope_.refuse("factor", "a number, or an original_max_position_embeddings to tell it from");
    scaling_.factor = rope_.has("factor") ? rope_.get_double("factor") : stretch();
    if (!(scaling_.factor > 0)) rope_.refuse("factor", "more than 0");
    scaling_.beta_fast = positive_or("beta_fast", scaling_.beta_fast);
    scaling_.beta_slow = positive_or("beta_slow", scaling_.beta_slow);
    scaling_.rounds_range = rope_.get_bool_or("truncate", true);
    scaling_.attention_factor = positive_or(
        "attention_factor", yarn_attention_factor(scaling_.factor, rope_.get_double_or("mscale", 0),
                                                  rope_.get_double_or("mscale_all_dim", 0)));
  }

  void read_long_rope() {
    only({"short_factor", "long_factor", "factor", "original_max_position_embeddings",
          "attention_factor"});
    scaling_.kind = Kind::kLongRope;
    read_original_positions();
    if (scaling_.original_max_positions < 2)
      rope_.refuse("original_max_position_embeddings", "at least 2");
    scaling_.short_factors = rope_.get_floats("short_factor");
    scaling_.long_factors = rope_.get_floats("long_factor");
    auto expected = static_cast<size_t>(out_.rotary_dim / 2);
    for (std::string_view field : {"short_factor", "long_factor"}) {
      if (rope_.get_floats(field).size() != expected)
        rope_.refuse(field, fmt::format("{} numbers, one per frequency", expected));
    }
    const double factor = rope_.get_double_or("factor", stretch());
    if (json_.has("original_max_position_embeddings") && std::abs(factor / stretch() - 1) > 1e-3)
      rope_.refuse("factor", fmt::format("{}, the ratio of the lengths", stretch()));
    scaling_.attention_factor = positive_or(
        "attention_factor", long_rope_attention_factor(factor, scaling_.original_max_positions));
  }

  // Beside the scaling in newer files, beside all else in Phi's.
  void read_original_positions() {
    constexpr std::string_view kField = "original_max_position_embeddings";
    const JsonFields& holder = json_.has(kField) ? json_ : rope_;
    scaling_.original_max_positions =
        static_cast<int32_t>(holder.get_int_or(kField, config_.max_positions, 1, INT32_MAX));
  }

  double stretch() const {
    return static_cast<double>(config_.max_positions) / scaling_.original_max_positions;
  }

  double positive_or(std::string_view field, double fallback) const {
    double value = rope_.get_double_or(field, fallback);
    if (!(value > 0)) rope_.refuse(field, "more than 0");
    return value;
  }

  void only(std::vector<std::string_view> fields) const {
    for (std::string_view common : {"type", "rope_type", "rope_theta", "partial_rotary_factor"})
      fields.push_back(common);
    for (const std::string& key : rope_.keys()) {
      if (rope_.has(key) && std::ranges::find(fields, key) == fields.end())
        rope_.refuse(key, "no such field for this kind of RoPE: it is not supported");
    }
  }

  const JsonFields& json_;
  const JsonFields& rope_;
  const ModelConfig& config_;
  RopeConfig& out_;
  RopeScaling& scaling_;
};

// The "rope." keys of a GGUF file, and its tensors of divisors.
class GgufRope {
 public:
  GgufRope(const GgufFile& file, std::string_view prefix, ModelConfig& config)
      : file_(file), prefix_(prefix), config_(config), scaling_(config.rope.scaling) {}

  void read() {
    refuse_unknown_keys();
    config_.rope.theta = file_.get_double_or(key("freq_base"), 10000);
    config_.rope.rotary_dim = int32_or("dimension_count", config_.head_dim);
    if (file_.find(key("freq_base_swa")) != nullptr) {
      config_.local_rope = {.theta = file_.get_double(key("freq_base_swa")),
                            .rotary_dim = config_.rope.rotary_dim};
    }
    const std::string kind = read_kind();
    if (kind == "longrope") return read_long_rope();
    scaling_.attention_factor = positive_or("scaling.attn_factor", 1);
    if (kind == "none") return read_divisors();
    if (const FileTensor* divisors = find_divisors())
      refuse(fmt::format("tensor \"{}\" beside RoPE scaling \"{}\" is not supported",
                         divisors->name, kind));
    scaling_.factor = read_factor();
    if (kind == "yarn") return read_yarn();
    scaling_.kind = Kind::kLinear;
  }

 private:
  static constexpr std::string_view kOneTable = "rope_freqs.weight";
  static constexpr std::string_view kShortTable = "rope_factors_short.weight";
  static constexpr std::string_view kLongTable = "rope_factors_long.weight";

  std::string key(std::string_view suffix) const {
    return fmt::format("{}.rope.{}", prefix_, suffix);
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw Failure(ErrorCode::kInvalidArgument, fmt::format("{}: {}", file_.path().string(), what));
  }

  void refuse_unknown_keys() const {
    static constexpr std::array kKnown = {"dimension_count",
                                          "freq_base",
                                          "freq_base_swa",
                                          "scale_linear",
                                          "scaling.type",
                                          "scaling.factor",
                                          "scaling.original_context_length",
                                          "scaling.attn_factor",
                                          "scaling.finetuned",
                                          "scaling.yarn_log_multiplier",
                                          "scaling.yarn_ext_factor",
                                          "scaling.yarn_attn_factor",
                                          "scaling.yarn_beta_fast",
                                          "scaling.yarn_beta_slow"};
    for (const auto& entry : file_.metadata()) {
      const std::string& name = entry.first;
      if (!name.starts_with(key(""))) continue;
      if (std::ranges::none_of(kKnown, [&](const char* known) { return name == key(known); }))
        refuse(fmt::format("key \"{}\" is not supported", name));
    }
  }

  // Writers say "linear" with a factor of 0 or 1, or nothing, where tensors of divisors have it
  // all.
  std::string read_kind() const {
    std::string kind = file_.get_string_or(key("scaling.type"), "linear");
    if (kind != "none" && kind != "linear" && kind != "longrope" && kind != "yarn")
      refuse(fmt::format("key \"{}\" is \"{}\": expected none, linear, longrope or yarn",
                         key("scaling.type"), kind));
    if (kind == "linear" && read_factor() == 1) kind = "none";
    const FileTensor* divisors = find_divisors();
    const bool is_long = divisors != nullptr && divisors->name != kOneTable;
    return kind == "none" && is_long ? "longrope" : kind;
  }

  const FileTensor* find_divisors() const {
    for (std::string_view name : {kShortTable, kLongTable, kOneTable}) {
      if (const FileTensor* tensor = file_.find_tensor(name)) return tensor;
    }
    return nullptr;
  }

  double read_factor() const {
    double factor =
        file_.get_double_or(key("scaling.factor"), file_.get_double_or(key("scale_linear"), 1));
    return factor == 0 ? 1 : factor;
  }

  int32_t int32_or(std::string_view suffix, int32_t fallback) const {
    int64_t value = file_.get_int_or(key(suffix), fallback);
    if (value < 1 || value > INT32_MAX)
      refuse(fmt::format("key \"{}\" is {}: expected 1 to {}", key(suffix), value, INT32_MAX));
    return static_cast<int32_t>(value);
  }

  double positive_or(std::string_view suffix, double fallback) const {
    double value = file_.get_double_or(key(suffix), fallback);
    if (!(value > 0))
      refuse(fmt::format("key \"{}\" is {}: expected more than 0", key(suffix), value));
    return value;
  }

  std::vector<float> divisors(std::string_view name) const {
    const FileTensor* tensor = file_.find_tensor(name);
    if (tensor == nullptr) refuse(fmt::format("tensor \"{}\" is missing", name));
    const std::vector<int64_t> expected{config_.rope.rotary_dim / 2};
    if (tensor->dtype != DType::kF32 || tensor->shape != expected)
      refuse(
          fmt::format("tensor \"{}\": expected [{}] of f32, one per frequency", name, expected[0]));
    return tensor->read_floats();
  }

  // Llama 3.1's scaling travels as one divisor per frequency.
  void read_divisors() {
    if (file_.find_tensor(kOneTable) == nullptr) return;
    scaling_.kind = Kind::kLongRope;
    scaling_.original_max_positions = config_.max_positions;
    scaling_.short_factors = divisors(kOneTable);
    scaling_.long_factors = scaling_.short_factors;
  }

  void read_long_rope() {
    if (file_.find_tensor(kOneTable) != nullptr)
      refuse(fmt::format("tensor \"{}\" beside \"{}\" is not supported", kOneTable, kShortTable));
    scaling_.kind = Kind::kLongRope;
    scaling_.original_max_positions =
        int32_or("scaling.original_context_length", config_.max_positions);
    if (scaling_.original_max_positions < 2)
      refuse(fmt::format("key \"{}\" is {}: expected at least 2",
                         key("scaling.original_context_length"), scaling_.original_max_positions));
    scaling_.short_factors = divisors(kShortTable);
    scaling_.long_factors = divisors(kLongTable);
    double stretch = static_cast<double>(config_.max_positions) / scaling_.original_max_positions;
    scaling_.attention_factor =
        positive_or("scaling.attn_factor",
                    long_rope_attention_factor(stretch, scaling_.original_max_positions));
  }

  void read_yarn() {
    scaling_.kind = Kind::kYarn;
    scaling_.original_max_positions =
        int32_or("scaling.original_context_length", config_.max_positions);
    scaling_.beta_fast = positive_or("scaling.yarn_beta_fast", scaling_.beta_fast);
    scaling_.beta_slow = positive_or("scaling.yarn_beta_slow", scaling_.beta_slow);
    double blend = file_.get_double_or(key("scaling.yarn_ext_factor"), 1);
    if (blend != 1 && blend != -1)  // -1: what YaRN has
      refuse(fmt::format("key \"{}\" is {}: expected 1", key("scaling.yarn_ext_factor"), blend));
    const double usual = yarn_attention_factor(
        scaling_.factor, 1, file_.get_double_or(key("scaling.yarn_log_multiplier"), 0));
    // The "attention_factor" of config.json, which stands for the usual one. Writers that leave no
    // key out, which the -1 above tells, have 1 where there is none.
    const double own = positive_or("scaling.yarn_attn_factor", usual);
    if (blend == -1 && own != usual && own != 1)
      refuse(fmt::format("key \"{}\" is {} beside a \"{}\" of -1: expected 1",
                         key("scaling.yarn_attn_factor"), own, key("scaling.yarn_ext_factor")));
    scaling_.attention_factor *= blend == -1 ? usual : own;
  }

  const GgufFile& file_;
  std::string_view prefix_;
  ModelConfig& config_;
  RopeScaling& scaling_;
};

// What is there and not empty.
std::optional<JsonFields> find_rope(const JsonFields& json, std::string_view field) {
  auto rope = json.find_object(field);
  return rope && !rope->keys().empty() ? std::move(rope) : std::nullopt;
}

void read_rope_object(const JsonFields& json, const JsonFields& rope, ModelConfig& config) {
  auto full = rope.find_object("full_attention");
  auto local = rope.find_object("sliding_attention");
  if (!full || !local) return HfRope(json, rope, config, config.rope).read();
  for (const std::string& key : rope.keys()) {
    if (key != "full_attention" && key != "sliding_attention")
      rope.refuse(key, "full_attention and sliding_attention alone");
  }
  // What stands beside all else, Phi's original length, is not for these.
  config.local_rope = config.rope;
  HfRope(rope, *local, config, *config.local_rope).read();
  HfRope(rope, *full, config, config.rope).read();
}

// "rope_scaling" says nothing of theta, and nothing of layers with a window.
bool is_same_scaling(const ModelConfig& scaled, const ModelConfig& config) {
  const RopeConfig& own = scaled.rope;
  if (own.scaling != config.rope.scaling || own.rotary_dim != config.rope.rotary_dim) return false;
  return !scaled.local_rope ||
         (config.local_rope && scaled.local_rope->scaling == config.local_rope->scaling);
}

}  // namespace

void read_hf_rope(const JsonFields& json, ModelConfig& config) {
  config.rope.theta = json.get_double_or("rope_theta", config.rope.theta);
  config.rope.rotary_dim = rotary_dim_of(json, config.head_dim);
  const auto scaling = find_rope(json, "rope_scaling");
  const auto parameters = find_rope(json, "rope_parameters");
  ModelConfig scaled = config;
  if (scaling) read_rope_object(json, *scaling, scaled);
  if (parameters) read_rope_object(json, *parameters, config);
  if (scaling && parameters && !is_same_scaling(scaled, config))
    json.refuse("rope_parameters", "what \"rope_scaling\" says");
  if (scaling && !parameters) config = std::move(scaled);
}

void read_gguf_rope(const GgufFile& file, std::string_view prefix, ModelConfig& config) {
  GgufRope(file, prefix, config).read();
}

}  // namespace droidspeak
