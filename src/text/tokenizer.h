// Text to token ids and back. Immutable after construction and safe to use from many threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace droidspeak {

class GgufFile;

enum class SpecialTokens {
  kParse,   // text such as <|im_start|> becomes its token
  kAsText,  // it is encoded as plain text
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Ids of the whole text. Nothing is put around it; see as_prompt().
  virtual std::vector<int32_t> encode(std::string_view text, SpecialTokens special) const = 0;

  // Raw bytes of one token as they appear inside a text; special tokens give their text.
  virtual std::string_view bytes_of(int32_t id) const = 0;
  // Bytes of a whole sequence: differs from joining bytes_of() where a SentencePiece model drops
  // the space before the first word. Special tokens are left out when `special` is kParse.
  virtual std::string decode(const std::vector<int32_t>& ids, SpecialTokens special) const = 0;

  virtual int32_t vocab_size() const = 0;
  virtual bool is_special(int32_t id) const = 0;
  // -1 when there is no such token.
  virtual int32_t find(std::string_view token) const = 0;

  int32_t bos_id = -1;
  int32_t eos_id = -1;
  bool bos_for_prompts = false;   // the model expects BOS before a raw prompt
  int32_t end_of_prompt_id = -1;  // what it expects behind one, mostly EOS; -1: nothing
  std::vector<int32_t>
      end_of_turn_ids;        // tokens that end an answer (EOS, <|im_end|>, <|eot_id|>, ...)
  std::string chat_template;  // Jinja source, empty when the model has none
  std::string bos_text;
  std::string eos_text;
};

// From GGUF metadata (tokenizer.ggml.*: models "gpt2" and "llama"). Throws Failure naming file, key
// and value for what is not supported.
std::unique_ptr<Tokenizer> load_gguf_tokenizer(const GgufFile& file);

// From a Hugging Face folder: tokenizer.json or tokenizer.model, and as far as they are there
// tokenizer_config.json, special_tokens_map.json, chat_template.jinja, generation_config.json and,
// where that names no tokens that end an answer, config.json.
std::unique_ptr<Tokenizer> load_hf_tokenizer(const std::filesystem::path& folder);

}  // namespace droidspeak
