// How a checkpoint's files make token ids of a text, in one form for all their spellings, to be
// compared: src/text reads the same files to do it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace droidspeak {

enum class TokenizerFormat { kJson, kSentencePiece, kGguf };

struct TokenizerDefinition {
  TokenizerFormat format = TokenizerFormat::kJson;
  std::map<std::string, int64_t> ids;  // by token as written in the file
  std::set<int64_t> special;
  std::vector<std::string> merges;  // "left right", in order; empty: the format has none
  std::vector<double> scores;       // by id, which order merges elsewhere; empty: none
  // What is done with every text, in the words of the format ("normalizer", "model.byte_fallback")
  // and as JSON. Those behind others may depend on them.
  std::vector<std::pair<std::string, std::string>> rules;
  // How added tokens are found in a text, likewise, which may depend on the rules.
  std::map<std::string, std::string> added;
};

// Of a tokenizer.json or a tokenizer.model, with the tokenizer_config.json beside it, or a GGUF
// file. Throws Failure naming the file when it cannot be read.
TokenizerDefinition read_tokenizer_definition(const std::filesystem::path& file);

}  // namespace droidspeak
