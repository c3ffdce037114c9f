// How a checkpoint's files make token ids of a text, in one form for all their spellings, to be
// compared: src/text reads the same files to do it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace droidspeak {

enum class TokenizerFormat { kJson, kSentencePiece, kGguf };

struct TokenizerDefinition {
  TokenizerFormat format = TokenizerFormat::kJson;
  std::map<std::string, int64_t> ids;     // by token as written in the file
  std::map<std::string, int64_t> unused;  // no text has them: others need not have them either
  std::set<int64_t> special;
  std::vector<std::string> merges;  // "left right", in order; empty: the format has none
  std::vector<double> scores;       // by id, which order merges elsewhere; empty: none
  // What is done with every text, in the words of the format ("normalizer", "model.byte_fallback")
  // and as JSON. Those behind others may depend on them.
  std::vector<std::pair<std::string, std::string>> rules;
  // How added tokens are found in a text, likewise, which may depend on the rules.
  std::map<std::string, std::string> added;
};

// The text of a file, of so many bytes at most; nothing where there is none. Throws Failure.
using ReadTokenizerFile =
    std::function<std::optional<std::string>(const std::string& name, size_t max_bytes)>;

// Of a folder's tokenizer.json or tokenizer.model, with the tokenizer_config.json beside it;
// nothing where it has neither. Throws Failure naming the file when it cannot be read.
std::optional<TokenizerDefinition> read_tokenizer_definition(const std::filesystem::path& folder,
                                                             const ReadTokenizerFile& read);
// Of a GGUF file; throws likewise.
TokenizerDefinition read_gguf_tokenizer_definition(const std::filesystem::path& file);

}  // namespace droidspeak
