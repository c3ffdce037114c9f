// Whether the members of a family read a text as the same token ids, compared by what their files
// say: caches hold tokens of the base's tokenizer, and so must every variant.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "model/tokenizer_definition.h"

namespace droidspeak {

class AdapterOpener;

// Whether a checkpoint brings a tokenizer. Where a variant does not, the base's is used.
bool has_tokenizer(const std::filesystem::path& checkpoint);

// An adapter's tokenizer beside the base's, which is used.
struct AdapterTokenizer {
  std::string mismatch;  // a token of both that has another id; empty: none, so that it fits
  std::vector<std::string> differences;  // what else differs, a sentence each
};

// That of the base. Its files are read once, when the first variant is found to bring one. Paths
// are those of GGUF files or Hugging Face folders. For any thread.
class BaseTokenizer {
 public:
  explicit BaseTokenizer(std::filesystem::path base) : base_(std::move(base)) {}

  // What differs, for a message: vocabulary, special tokens, merges; between files of one format
  // also normalizer, pre-tokenizer, how added tokens are found, and the model's options. Empty when
  // nothing does, or when either brings no tokenizer (the base's is used). Which token begins or
  // ends a prompt or an answer may differ. Throws Failure naming a file that cannot be read.
  std::string mismatch_of(const std::filesystem::path& variant);

  // Throws Failure where the base's files cannot be read.
  AdapterTokenizer compare(const AdapterOpener& adapter);

  // The differences; throws Failure naming the adapter where there is a mismatch.
  std::vector<std::string> require_fit(const AdapterOpener& adapter);

 private:
  const TokenizerDefinition* definition();  // null: it brings none

  const std::filesystem::path base_;
  Mutex mutex_;
  bool is_read_ GUARDED_BY(mutex_) = false;
  std::optional<TokenizerDefinition> definition_ GUARDED_BY(mutex_);  // stays as it was read
};

}  // namespace droidspeak
