// LoRA of experts that are one parameter (PEFT's "target_parameters"), taken apart. For gate and up
// of a layer's experts, or for their down, lora_A has the experts below each other,
// [experts * rank, in], and lora_B those of every rank side by side, [out, rank * experts].
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "model/adapter_config.h"
#include "model/adapter_targets.h"

namespace droidspeak {

class ExpertParameters {
 public:
  // All of them outlive it, the targets also what it splits.
  ExpertParameters(const SafetensorsFile& file,
                   const AdapterConfig& config,
                   const ModelConfig& base,
                   const std::vector<AdapterTarget>& targets)
      : file_(file), config_(config), base_(base), targets_(targets) {}

  // One tensor of the file for each expert; nothing when this one is of another kind. Throws
  // Failure naming file and tensor when it fits none of the base's experts.
  std::optional<std::vector<AdapterTensor>> split(const FileTensor& tensor) const;
  // Throws Failure when the tensor is for gate and up of one expert as a module, which a base that
  // has their rows by turns does not have: in which order they were meant cannot be told.
  void check_module(const AdapterTensor& tensor) const;

 private:
  // lora_A and lora_B of one parameter.
  struct Pair {
    const FileTensor& down;
    const FileTensor& up;
  };

  [[noreturn]] void refuse(const FileTensor& tensor, const std::string& what) const;
  void check_ranks(const FileTensor& tensor, const Pair& pair) const;
  // "gate_up_proj" or "down_proj", by the shapes.
  std::string parameter_of(const FileTensor& tensor, const Pair& pair) const;
  // Of gate and up in the base's parameters.
  bool has_rows_by_turns() const;
  void refuse_patterns(const FileTensor& tensor, const std::string& module) const;

  const SafetensorsFile& file_;
  const AdapterConfig& config_;
  const ModelConfig& base_;
  const std::vector<AdapterTarget>& targets_;
};

}  // namespace droidspeak
