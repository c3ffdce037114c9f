// What adapter_config.json of a PEFT folder, or the metadata of a GGUF file, says about running the
// adapter: for which linear layers it is, ranks and scales. A field that changes what the tensors
// mean, and is not done here, is refused by name; so is one that this version does not know, unless
// its value is blank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/regex.h"
#include "model/module_selection.h"

namespace droidspeak {

class GgufFile;
class InputFile;
class JsonFields;
struct ModelConfig;

// rank_pattern or alpha_pattern: numbers for linear layers whose path fits a key. As PEFT does it,
// a key is a regular expression for the end of the path, from its beginning or a dot on, and the
// first key in the order of the file that fits counts.
class ModulePattern {
 public:
  struct Entry {
    std::string key;
    double value = 0;
    std::optional<Regex> expression;  // none: the key is a plain name
  };

  ModulePattern() = default;

  // `where`: file and field, for messages.
  explicit ModulePattern(std::string where) : where_(std::move(where)) {}

  // Throws Failure naming the field and the key.
  void add(const JsonFields& values, const std::string& key, double value);
  // The number for a path like "model.layers.3.self_attn.q_proj". Throws Failure when a regular
  // expression takes too long.
  std::optional<double> find(const std::string& module) const;

  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::string where_;
  std::vector<Entry> entries_;
  size_t num_expressions_ = 0;
};

// What adapter_config.json may ask for and is refused, with commas.
std::string unsupported_adapter_features();

class AdapterConfig {
 public:
  // Throws Failure naming file, field and value.
  AdapterConfig(const InputFile& file, const ModelConfig& base);

  // Of an adapter in GGUF, for a base of so many tokens. Throws Failure naming file, key and value.
  AdapterConfig(const GgufFile& file, int32_t vocab_size);

  // Nothing for GGUF files: tensors have their ranks.
  std::optional<int32_t> rank(const std::string& module) const;

  bool has_ranks() const { return rank_.has_value(); }

  // Whether rank_pattern or alpha_pattern has a number for it.
  bool has_pattern(const std::string& module) const {
    return ranks_.find(module) || alphas_.find(module);
  }

  double scale(const std::string& module, int32_t rank) const;  // of B A
  // False when layers_to_transform leaves it out.
  bool has_layer(int32_t layer) const;

  // Empty when PEFT would correct this module (or one parameter of a module): else why not. Only
  // for PEFT folders.
  std::string why_no_module(const std::string& module) const;
  std::string why_no_parameter(const std::string& parameter) const;

  // Of an activated LoRA; empty: a plain one.
  const std::vector<int32_t>& invocation() const { return invocation_; }

  // Everything that changes what the adapter computes.
  void add_to(Sha256& hash) const;

 private:
  void read_modules(const JsonFields& json);
  void read_layers(const JsonFields& json);
  void read_invocation(const JsonFields& json, int32_t vocab_size);

  enum class Scaling { kByRank, kByRootOfRank, kNone };

  std::optional<int32_t> rank_;
  double alpha_ = 0;
  ModulePattern ranks_;
  ModulePattern alphas_;
  Scaling scaling_ = Scaling::kByRank;
  std::optional<std::vector<int64_t>> layers_;  // none: all
  bool targets_all_ = false;  // also where the file names nothing: it is for the modules it has
  ModuleSelection targets_;
  ModuleSelection excluded_;
  ModuleSelection parameters_;
  std::vector<int32_t> invocation_;
  std::string architecture_;  // of a GGUF file, whose rows may be in its order
};

}  // namespace droidspeak
