// A GGUF file or Hugging Face folder seen as one thing: a config and tensors by role.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/hash.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "model/architectures/architecture.h"
#include "model/model_config.h"
#include "model/quantized/quantized_tensors.h"

namespace droidspeak {

// What a config.json says.
struct HfConfig {
  const Architecture* architecture = nullptr;
  ModelConfig config;
  bool is_tied = false;
  std::optional<QuantizationConfig> quantization;  // none: weights are floats
};

// Throws Failure naming file, field and value.
HfConfig read_hf_config(const std::filesystem::path& path);

// One expert's part of a tensor, or all of it.
struct ExpertTensor {
  FileTensor tensor;
  const FileTensor* whole;     // as it is in the file
  bool is_transposed = false;  // [columns, rows]
};

class Checkpoint {
 public:
  // Throws Failure when the path is neither, or the architecture is not supported.
  explicit Checkpoint(const std::filesystem::path& path);
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

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
  // The same for a matrix of which every expert of a layer has one.
  std::vector<ExpertTensor> expert_matrices(TensorRole role,
                                            int32_t layer,
                                            int64_t rows,
                                            int64_t columns) const;
  // The same for biases of the experts.
  std::vector<ExpertTensor> expert_biases(TensorRole role, int32_t layer, int64_t size) const;
  // Whether files of this kind have such a part.
  bool has_name(TensorRole role) const;

  // Throws Failure naming a tensor that is neither used nor known to be without meaning.
  void refuse_other_tensors(const std::set<const FileTensor*>& used) const;

  // SHA-256 over names, shapes and bytes of all tensors; remembered beside the file.
  Digest digest() const;
  // Throws Failure when a file has changed since it was opened: what was read may be of two
  // contents, and the digest of neither.
  void check_unchanged() const;

 private:
  void read_gguf_config();
  std::string name_of(TensorRole role,
                      int32_t layer,
                      std::string_view suffix,
                      int32_t expert = 0) const;
  const FileTensor* find_named(const std::string& name) const;
  const FileTensor& find_of_shape(const std::string& name, const std::vector<int64_t>& shape) const;
  std::vector<const FileTensor*> all_tensors() const;  // as they are in the file
  std::vector<const OtherTensor*> other_tensors() const;
  std::vector<const InputFile*> files() const;
  [[noreturn]] void refuse_tensor(const std::string& name) const;
  void check_tied(const FileTensor& output) const;

  std::filesystem::path path_;
  std::optional<GgufFile> gguf_;
  std::optional<SafetensorsFolder> folder_;
  std::optional<QuantizedTensors> quantized_;  // of folder_; none: its weights are floats
  const Architecture* architecture_ = nullptr;
  ModelConfig config_;
  bool is_tied_ = false;
};

}  // namespace droidspeak
