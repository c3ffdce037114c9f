// What the files beside a Hugging Face tokenizer say of prompts and answers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace droidspeak {

// Empty: not said.
struct HfPromptFiles {
  std::string bos_text;
  std::string eos_text;
  std::filesystem::path bos_file;  // where it is said
  std::filesystem::path eos_file;
  std::optional<bool> adds_bos;  // to prompts
  std::optional<bool> adds_eos;
  std::string chat_template;
  std::vector<int32_t> end_ids;
};

// Throws Failure naming file and field.
HfPromptFiles read_hf_prompt_files(const std::filesystem::path& folder);
bool has_hf_tokenizer(const std::filesystem::path& folder);

}  // namespace droidspeak
