#include "text/prompt_differences.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "formats/gguf.h"
#include "text/hf_prompt_files.h"

namespace droidspeak {
namespace {

// Empty: not said.
struct Said {
  std::string chat_template;
  std::string bos_text;
  std::optional<bool> begins_with_bos;
  std::optional<int32_t> end_of_prompt;  // -1: nothing
  std::vector<int32_t> ends;
};

Said said_by(const Tokenizer& own) {
  return {own.chat_template, own.bos_text, own.bos_for_prompts, own.end_of_prompt_id,
          own.end_of_turn_ids};
}

Said said_by_folder(const std::filesystem::path& folder, const Tokenizer& base) {
  if (has_hf_tokenizer(folder)) return said_by(*load_hf_tokenizer(folder));
  HfPromptFiles files = read_hf_prompt_files(folder);
  const int32_t eos = files.eos_text.empty() ? -1 : base.find(files.eos_text);
  Said said{files.chat_template, files.bos_text, files.adds_bos, std::nullopt,
            std::move(files.end_ids)};
  if (files.adds_eos) said.end_of_prompt = *files.adds_eos ? (eos < 0 ? base.eos_id : eos) : -1;
  if (eos >= 0 && std::ranges::count(said.ends, eos) == 0) said.ends.push_back(eos);
  return said;
}

Said said_by_file(const std::filesystem::path& path) {
  const GgufFile file(path);
  // LoRA files have none.
  if (file.find("tokenizer.ggml.model") == nullptr) return {};
  return said_by(*load_gguf_tokenizer(file));
}

// Writers end files with another number of line ends.
std::string_view without_end(std::string_view text) {
  return text.substr(0, text.find_last_not_of("\r\n") + 1);
}

}  // namespace

std::vector<std::string> describe_prompt_differences(const Tokenizer& base,
                                                     const std::filesystem::path& variant) {
  const Said said = std::filesystem::is_directory(variant) ? said_by_folder(variant, base)
                                                           : said_by_file(variant);
  std::vector<std::string> differences;
  if (!said.chat_template.empty() &&
      without_end(said.chat_template) != without_end(base.chat_template))
    differences.emplace_back("its chat template is another one; the base's is used");
  if (!said.bos_text.empty() && said.bos_text != base.bos_text) {
    differences.push_back(
        fmt::format("its BOS is \"{}\"; the base's is used, \"{}\"", said.bos_text, base.bos_text));
  }
  if (said.begins_with_bos && *said.begins_with_bos != base.bos_for_prompts) {
    differences.push_back(fmt::format("its prompts begin with{} BOS; the base's way is used",
                                      *said.begins_with_bos ? "" : "out"));
  }
  if (said.end_of_prompt && *said.end_of_prompt != base.end_of_prompt_id) {
    const int32_t id = *said.end_of_prompt;
    differences.push_back(
        id < 0 ? "nothing stands behind its prompts; the base's way is used"
               : fmt::format("token {} stands behind its prompts; the base's way is used", id));
  }
  for (int32_t id : said.ends) {
    if (std::ranges::count(base.end_of_turn_ids, id) > 0) continue;
    differences.push_back(fmt::format(
        "its answers end with token {} (\"{}\"), too; those of the base, which is asked, do not",
        id, id < base.vocab_size() ? base.bytes_of(id) : ""));
  }
  return differences;
}

}  // namespace droidspeak
