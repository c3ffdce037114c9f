// A GGUF file or Hugging Face folder seen as one thing: a config and tensors by role.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/hash.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "model/architectures/architecture.h"
#include "model/model_config.h"

namespace droidspeak {

enum class TensorRole {
  kEmbedding,
  kOutputNorm,
  kOutput,
  kAttentionNorm,
  kQuery,
  kKey,
  kValue,
  kFusedQkv,
  kAttentionOutput,
  kFfnNorm,
  kGate,
  kUp,
  kFusedGateUp,
  kDown,
  kQueryNorm,
  kKeyNorm,
};

class Checkpoint {
 public:
  // Throws Failure when the path is neither, or the architecture is not supported.
  explicit Checkpoint(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }

  const ModelConfig& config() const { return config_; }

  const Architecture& architecture() const { return *architecture_; }

  bool is_gguf() const { return gguf_.has_value(); }

  bool is_tied() const { return is_tied_; }

  bool permutes_qk() const { return is_gguf() && architecture_->gguf_permutes_qk; }

  // Throws Failure naming the file and tensor when it is missing or has another shape.
  const FileTensor& matrix(TensorRole role, int32_t layer, int64_t rows, int64_t columns) const;
  const FileTensor& vector(TensorRole role,
                           int32_t layer,
                           int64_t size,
                           std::string_view suffix) const;
  const FileTensor* find(TensorRole role, int32_t layer, std::string_view suffix) const;

  // SHA-256 over names, shapes and bytes of all tensors; cached beside the file with size and
  // mtime.
  Digest digest() const;

 private:
  void read_gguf_config();
  void read_hf_config();
  std::string name_of(TensorRole role, int32_t layer, std::string_view suffix) const;
  std::vector<const FileTensor*> all_tensors() const;
  std::vector<std::filesystem::path> files() const;

  std::filesystem::path path_;
  std::optional<GgufFile> gguf_;
  std::optional<SafetensorsFolder> folder_;
  const Architecture* architecture_ = nullptr;
  ModelConfig config_;
  bool is_tied_ = false;
};

}  // namespace droidspeak
