// Whether the members of a family fit together, told before weights are loaded.
#pragma once

#include <string>
#include <vector>

#include "model/family.h"

namespace droidspeak {

enum class MemberKind { kBase, kCheckpoint, kAdapter };

struct MemberCheck {
  std::string name;
  MemberKind kind = MemberKind::kBase;
  std::filesystem::path path;
  std::string problem;        // empty: it fits
  bool is_activated = false;  // an activated LoRA, which needs no plans
  bool has_tokenizer = true;  // false: a checkpoint that is taken to read texts as the base does
  // What its files say of texts, prompts and answers, and the base otherwise, whose way is used.
  // Here those of an adapter's tokenizer alone: who has tokenizers adds the others.
  std::vector<std::string> differences = {};
};

// The base first. Reads configurations, names and shapes of tensors, tokenizers and adapters, but
// no weights of checkpoints. A variant is compared with what the base's files make of their
// configuration, whatever format they are in.
std::vector<MemberCheck> check_family(const FamilyFile& file);

}  // namespace droidspeak
