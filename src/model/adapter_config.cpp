#include "model/adapter_config.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json_scan.h"
#include "formats/gguf.h"
#include "model/architectures/architecture.h"
#include "model/json_fields.h"

namespace droidspeak {
namespace {

constexpr size_t kMaxConfigBytes = size_t{1} << 20;
// Room for both patterns and for lists of modules by their whole names.
constexpr JsonLimits kConfigLimits{.depth = 64, .values = 1 << 16, .keys = 1 << 14};
constexpr int64_t kMaxRank = 65536;
constexpr size_t kMaxPatterns = 4096;  // one for every linear layer of a large model
constexpr size_t kMaxExpressions = 64;
constexpr size_t kMaxInvocation = 256;
// Paths have some forty characters: what people write takes a few hundred steps.
constexpr RegexLimits kExpressionLimits{.pattern_bytes = 512, .match_steps = 20'000};

// Whatever they hold, the tensors mean the same.
constexpr std::string_view kNeutralFields[] = {"base_model_name_or_path",
                                               "corda_config",
                                               "eva_config",
                                               "inference_mode",
                                               "loftq_config",
                                               "lora_dropout",
                                               "lora_ga_config",
                                               "megatron_core",
                                               "peft_version",
                                               "qalora_group_size",
                                               "revision",
                                               "runtime_config",
                                               "task_type",
                                               "velora_config"};

// Read by AdapterConfig.
constexpr std::string_view kReadFields[] = {"alora_invocation_tokens",
                                            "alpha_pattern",
                                            "auto_mapping",
                                            "bias",
                                            "exclude_modules",
                                            "init_lora_weights",
                                            "layers_pattern",
                                            "layers_to_transform",
                                            "lora_alpha",
                                            "peft_type",
                                            "r",
                                            "rank_pattern",
                                            "target_modules",
                                            "target_parameters",
                                            "use_rslora"};

struct UnsupportedField {
  std::string_view name;
  std::string_view what;
};

constexpr UnsupportedField kUnsupportedFields[] = {
    {"arrow_config", "Arrow routing"},
    {"ensure_weight_tying", "tying adapters"},
    {"fan_in_fan_out", "transposed weights"},
    {"kasa_config", "KaSA"},
    {"layer_replication", "replicating layers"},
    {"lora_bias", "a bias of lora_B"},
    {"megatron_config", "Megatron's parallel layers"},
    {"modules_to_save", "replacing whole modules"},
    {"modules_to_tie", "tying adapters"},
    {"monteclora_config", "MonteCLoRA"},
    {"target_modules_to_tie", "tying adapters"},
    {"trainable_token_indices", "training single tokens"},
    {"use_bdlora", "block-diagonal LoRA"},
    {"use_dora", "DoRA"},
    {"use_qalora", "QALoRA"}};

// Ways to begin training that leave the base's weights as they are. The others (PiSSA, OLoRA,
// CorDA, LoftQ, LoRA-GA) make PEFT change them again at every load.
constexpr std::string_view kHarmlessBeginnings[] = {"eva", "gaussian", "mica", "orthogonal"};

std::string in_lower_case(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

void check_beginning(const JsonFields& json) {
  constexpr std::string_view field = "init_lora_weights";
  if (!json.is_text(field)) {
    static_cast<void>(json.get_bool_or(field, true));
    return;
  }
  const std::string beginning = in_lower_case(json.get_string(field));
  if (std::ranges::find(kHarmlessBeginnings, beginning) != std::end(kHarmlessBeginnings)) return;
  json.refuse(field, fmt::format("true, false or one of {}: others change the base's weights; save "
                                 "the adapter converted to plain LoRA",
                                 fmt::join(kHarmlessBeginnings, ", ")));
}

void check_fields(const JsonFields& json) {
  if (json.get_string_or("peft_type", "LORA") != "LORA") json.refuse("peft_type", "\"LORA\"");
  if (json.get_string_or("bias", "none") != "none") json.refuse("bias", "\"none\"");
  check_beginning(json);
  auto contains = [](const auto& names, const std::string& name) {
    return std::ranges::find(names, name) != std::end(names);
  };
  for (const std::string& name : json.keys()) {
    if (contains(kNeutralFields, name) || contains(kReadFields, name) || json.is_blank(name))
      continue;
    const auto* unsupported = std::ranges::find(kUnsupportedFields, name, &UnsupportedField::name);
    if (unsupported != std::end(kUnsupportedFields))
      json.refuse(name, fmt::format("null or false: {} is not supported", unsupported->what));
    json.refuse(name, "null, false, 0 or empty: the field is not known to this version");
  }
}

// PEFT that is told no task writes where the base's class lies:
// "transformers.models.llama.modeling_llama". Only that tells for sure what the adapter was made
// for: base_model_name_or_path is a name or path of some machine, and copies have others.
void check_architecture(const JsonFields& json, const ModelConfig& base) {
  constexpr std::string_view kModels = "transformers.models.";
  const std::optional<JsonFields> mapping = json.find_object("auto_mapping");
  if (!mapping || !mapping->is_text("parent_library")) return;
  const std::string library = mapping->get_string("parent_library");
  if (!library.starts_with(kModels)) return;
  const std::string_view rest = std::string_view(library).substr(kModels.size());
  if (may_be_for(rest.substr(0, rest.find('.')), base.architecture)) return;
  mapping->refuse("parent_library", fmt::format("an adapter of the base model's architecture, {}",
                                                base.architecture));
}

// The keys of a nested object as Python's dictionaries order them: by first appearance.
std::vector<std::string> keys_in_order(const std::string& text, std::string_view field) {
  std::vector<std::string> keys;
  std::set<std::string> seen;
  bool is_inside = false;
  for_each_json_key(text, [&](int depth, const std::string& key) {
    if (depth == 1) {
      is_inside = key == field;
      if (!is_inside) return;
      keys.clear();  // the last of two objects counts
      seen.clear();
    } else if (depth == 2 && is_inside && keys.size() <= kMaxPatterns && seen.insert(key).second) {
      keys.push_back(key);
    }
  });
  return keys;
}

template <class GetValue>
ModulePattern read_pattern(const JsonFields& json,
                           const std::string& text,
                           std::string_view field,
                           const GetValue& get_value) {
  ModulePattern pattern(fmt::format("{}: field \"{}\"", json.path().string(), field));
  auto values = json.find_object(field);
  if (!values) return pattern;
  std::vector<std::string> keys = keys_in_order(text, field);
  if (keys.size() > kMaxPatterns)
    json.refuse(field, fmt::format("at most {} entries", kMaxPatterns));
  for (const std::string& key : keys) pattern.add(*values, key, get_value(*values, key));
  return pattern;
}

// As a regular expression it matches text of its own length, with any character for a dot.
bool is_plain_name(std::string_view key) {
  return std::ranges::all_of(
      key, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; });
}

bool ends_with_name(std::string_view module, std::string_view key) {
  if (key.size() > module.size()) return false;
  size_t begin = module.size() - key.size();
  if (begin > 0 && module[begin - 1] != '.') return false;
  return std::ranges::equal(module.substr(begin), key,
                            [](char c, char wanted) { return wanted == '.' || c == wanted; });
}

}  // namespace

void ModulePattern::add(const JsonFields& values, const std::string& key, double value) {
  Entry entry{.key = key, .value = value, .expression = {}};
  if (!is_plain_name(key)) {
    if (++num_expressions_ > kMaxExpressions)
      values.refuse(key, fmt::format("at most {} regular expressions", kMaxExpressions));
    try {
      Regex alone(key, kExpressionLimits);  // what is balanced only inside the one below is wrong
      entry.expression.emplace(fmt::format(R"(\A(?:(.*\.)?({})$))", key),
                               RegexLimits{.pattern_bytes = kExpressionLimits.pattern_bytes + 32,
                                           .match_steps = kExpressionLimits.match_steps});
    } catch (const Failure& failure) {
      values.refuse(key,
                    fmt::format("a module's name or a regular expression: {}", failure.what()));
    }
  }
  entries_.push_back(std::move(entry));
}

std::optional<double> ModulePattern::find(const std::string& module) const {
  for (const Entry& entry : entries_) {
    try {
      TextRange match;
      bool fits = entry.expression ? Regex::Matches(*entry.expression, module).next(match)
                                   : ends_with_name(module, entry.key);
      if (fits) return entry.value;
    } catch (const Failure& failure) {
      throw Failure(failure.code(), fmt::format("{}: {}", where_, failure.what()));
    }
  }
  return std::nullopt;
}

std::string unsupported_adapter_features() {
  std::string names;
  for (const UnsupportedField& field : kUnsupportedFields)
    names += fmt::format("{}`{}` ({})", names.empty() ? "" : ", ", field.name, field.what);
  return names;
}

AdapterConfig::AdapterConfig(const InputFile& file, const ModelConfig& base) {
  const std::string text = file.read_text(kMaxConfigBytes);
  JsonFields json(file.path(), text, kConfigLimits);
  check_fields(json);
  check_architecture(json, base);
  rank_ = static_cast<int32_t>(json.get_int("r", 1, kMaxRank));
  alpha_ = json.get_double_or("lora_alpha", 8);
  ranks_ = read_pattern(json, text, "rank_pattern", [](const JsonFields& values, auto& key) {
    return static_cast<double>(values.get_int(key, 1, kMaxRank));
  });
  alphas_ = read_pattern(json, text, "alpha_pattern", [](const JsonFields& values, auto& key) {
    return values.get_double(key);
  });
  if (json.get_bool_or("use_rslora", false)) scaling_ = Scaling::kByRootOfRank;
  read_modules(json);
  read_layers(json);
  read_invocation(json, base.vocab_size);
}

// A file without alpha, or with 0, adds B A as it is.
AdapterConfig::AdapterConfig(const GgufFile& file, int32_t vocab_size)
    : alpha_(file.get_double_or("adapter.lora.alpha", 0)),
      scaling_(alpha_ == 0 ? Scaling::kNone : Scaling::kByRank),
      architecture_(file.get_string("general.architecture")) {
  constexpr std::string_view key = "adapter.alora.invocation_tokens";
  auto refuse = [&](const std::string& what) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: key \"{}\" {}", file.path().string(), key, what));
  };
  const GgufValue* value = file.find(key);
  if (value == nullptr) return;
  const auto* tokens = std::get_if<std::vector<int64_t>>(value);
  if (tokens == nullptr || tokens->empty() || tokens->size() > kMaxInvocation)
    refuse(fmt::format("is no list of 1 to {} token ids", kMaxInvocation));
  for (int64_t token : *tokens) {
    if (token < 0 || token >= vocab_size)
      refuse(fmt::format("holds {}: expected 0 to {}, which the base model has", token,
                         vocab_size - 1));
    invocation_.push_back(static_cast<int32_t>(token));
  }
}

void AdapterConfig::read_modules(const JsonFields& json) {
  const bool names_none = !json.has("target_modules") && json.is_blank("target_parameters");
  targets_all_ = names_none || (json.is_text("target_modules") &&
                                in_lower_case(json.get_string("target_modules")) == "all-linear");
  if (json.has("target_parameters") && !json.is_list("target_parameters"))
    json.refuse("target_parameters", "a list of names");
  targets_ = ModuleSelection(json, "target_modules");
  excluded_ = ModuleSelection(json, "exclude_modules");
  parameters_ = ModuleSelection(json, "target_parameters");
}

void AdapterConfig::read_layers(const JsonFields& json) {
  if (!json.is_blank("layers_pattern")) {
    bool is_text = json.is_text("layers_pattern");
    std::vector<std::string> names = is_text ? std::vector{json.get_string("layers_pattern")}
                                             : json.get_strings("layers_pattern");
    if (names != std::vector<std::string>{"layers"}) json.refuse("layers_pattern", "\"layers\"");
  }
  if (!json.has("layers_to_transform")) return;
  layers_ = json.get_ints("layers_to_transform", 0, INT32_MAX);
  if (layers_->empty()) layers_.reset();  // as PEFT takes it
}

void AdapterConfig::read_invocation(const JsonFields& json, int32_t vocab_size) {
  constexpr std::string_view field = "alora_invocation_tokens";
  if (!json.has(field)) return;
  std::string expected =
      fmt::format("null, or a list of 1 to {} token ids from 0 to {}, which the base model has",
                  kMaxInvocation, vocab_size - 1);
  if (!json.is_list(field)) json.refuse(field, expected);
  for (int64_t token : json.get_ints(field, 0, vocab_size - 1))
    invocation_.push_back(static_cast<int32_t>(token));
  if (invocation_.empty() || invocation_.size() > kMaxInvocation) json.refuse(field, expected);
}

std::optional<int32_t> AdapterConfig::rank(const std::string& module) const {
  if (!rank_) return std::nullopt;
  return static_cast<int32_t>(ranks_.find(module).value_or(*rank_));
}

double AdapterConfig::scale(const std::string& module, int32_t rank) const {
  const double alpha = alphas_.find(module).value_or(alpha_);
  switch (scaling_) {
    case Scaling::kByRank:
      return alpha / rank;
    case Scaling::kByRootOfRank:
      return alpha / std::sqrt(static_cast<double>(rank));
    case Scaling::kNone:
      break;
  }
  return 1;
}

bool AdapterConfig::has_layer(int32_t layer) const {
  return !layers_ || std::ranges::find(*layers_, layer) != layers_->end();
}

std::string AdapterConfig::why_no_module(const std::string& module) const {
  if (excluded_.has(module)) return fmt::format("is within {}", excluded_.shown());
  if (targets_all_ || targets_.has(module)) return "";
  return fmt::format("is outside {}", targets_.shown());
}

std::string AdapterConfig::why_no_parameter(const std::string& parameter) const {
  return parameters_.has(parameter) ? "" : fmt::format("is outside {}", parameters_.shown());
}

void AdapterConfig::add_to(Sha256& hash) const {
  if (rank_) hash.add_field('n', fmt::format("r={}", static_cast<double>(*rank_)));
  if (!architecture_.empty()) hash.add_field('g', architecture_);
  hash.add_field('n', fmt::format("lora_alpha={}", alpha_));
  hash.add_field('r', scaling_ == Scaling::kByRootOfRank ? "rslora" : "lora");
  for (const ModulePattern::Entry& entry : ranks_.entries())
    hash.add_field('p', fmt::format("rank_pattern:{}={}", entry.key, entry.value));
  for (const ModulePattern::Entry& entry : alphas_.entries())
    hash.add_field('p', fmt::format("alpha_pattern:{}={}", entry.key, entry.value));
  if (!invocation_.empty()) hash.add_field('i', std::as_bytes(std::span(invocation_)));
}

}  // namespace droidspeak
