// What the tokenizer tests share: reading the test data, and what failures say.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace droidspeak {

struct GoldenCase {
  std::string text;
  std::vector<int32_t> ids;
  std::optional<std::string> decoded;  // nothing where the reference could not decode
};

std::filesystem::path tokenizer_test_folder();
std::vector<GoldenCase> read_golden(const std::filesystem::path& path);
std::vector<int32_t> read_token_list(const std::filesystem::path& path);

// From a gzip-compressed GGUF file of the test folder.
std::unique_ptr<Tokenizer> load_packed_gguf(const std::string& name);
// From a SentencePiece model under another name than tokenizer.model.
std::unique_ptr<Tokenizer> load_sentencepiece(const std::filesystem::path& model);

// What the Failure says that `action` throws, or "no failure".
std::string failure_in(const std::function<void()>& action);

}  // namespace droidspeak
