// A field of adapter_config.json that names modules of the base ("target_modules",
// "exclude_modules", "target_parameters"), matched as PEFT does it: a text is a regular expression
// for a whole path, the names of a list are whole paths or what they end in behind a dot.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "base/regex.h"

namespace droidspeak {

class JsonFields;

class ModuleSelection {
 public:
  // Selects nothing.
  ModuleSelection() = default;

  // A missing field selects nothing. Throws Failure naming file and field.
  ModuleSelection(const JsonFields& json, std::string_view field);

  // "model.layers.3.self_attn.q_proj". Throws Failure when a regular expression takes too long.
  bool has(const std::string& module) const;

  // For messages: the field and what it says, which may be cut.
  const std::string& shown() const { return shown_; }

 private:
  std::string where_;
  std::string shown_;
  std::optional<Regex> expression_;
  std::unordered_set<std::string> names_;
};

}  // namespace droidspeak
