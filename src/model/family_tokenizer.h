// Whether two checkpoints of a family read a text as the same token ids, compared by what their
// files say: caches hold tokens of the base's tokenizer, and so must every variant.
#pragma once

#include <filesystem>
#include <string>

namespace droidspeak {

// Whether a checkpoint brings a tokenizer. Where a variant does not, the base's is used.
bool has_tokenizer(const std::filesystem::path& checkpoint);

// What differs, for a message: vocabulary, special tokens, merges; between files of one format also
// normalizer, pre-tokenizer, how added tokens are found, and the model's options. Empty when
// nothing does, or when a checkpoint brings no tokenizer (the base's is used). Which token begins a
// prompt or ends an answer may differ. Either path is a GGUF file or a Hugging Face folder. Throws
// Failure naming a file that cannot be read.
std::string describe_tokenizer_mismatch(const std::filesystem::path& base,
                                        const std::filesystem::path& variant);

// The same for an adapter, which may bring a tokenizer in its folder.
std::string describe_adapter_tokenizer_mismatch(const std::filesystem::path& base,
                                                const std::filesystem::path& adapter);

}  // namespace droidspeak
