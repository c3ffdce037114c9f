// Safetensors: one file, or a Hugging Face folder of shards with model.safetensors.index.json.
// Everything is validated while opening. Tensor bytes may lie at any alignment.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/file_tensor.h"

namespace droidspeak {

// A tensor of another dtype than those of FileTensor.
struct OtherTensor {
  std::string name;
  std::string dtype;  // as the file has it: "I32", "F8_E4M3"
  std::vector<int64_t> shape;
  TensorBytes bytes;
};

class SafetensorsFile {
 public:
  // Throws Failure naming file, tensor and value. F32, F16, BF16 are the dtypes of its tensors;
  // others are refused when their tensor is asked for by name (a checkpoint may carry unused
  // integer buffers). A header takes some twenty times its bytes while it is read:
  // `max_header_bytes` bounds what a file may cost.
  explicit SafetensorsFile(const std::filesystem::path& path,
                           uint64_t max_header_bytes = uint64_t{16} << 20);
  SafetensorsFile(std::shared_ptr<const InputFile> file, uint64_t max_header_bytes);

  const std::filesystem::path& path() const { return file_->path(); }

  const InputFile& file() const { return *file_; }

  const std::vector<FileTensor>& tensors() const { return tensors_; }

  // Null when there is no such tensor; throws Failure when its dtype is not one of the above.
  const FileTensor* find_tensor(std::string_view name) const;
  // Whether a tensor of that name is there, whatever its dtype.
  bool contains(std::string_view name) const;

  // Tensors of other dtypes, by position in the file.
  const std::vector<OtherTensor>& others() const { return others_; }

  const std::unordered_map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  void parse(uint64_t max_header_bytes);

  std::shared_ptr<const InputFile> file_;
  std::vector<FileTensor> tensors_;  // by position in the file
  std::unordered_map<std::string, size_t> index_;
  std::unordered_map<std::string, std::string> metadata_;
  std::vector<OtherTensor> others_;
  std::unordered_map<std::string, size_t> other_index_;
};

// All shards of a Hugging Face folder as one set of tensors: model.safetensors, or else the shards
// that model.safetensors.index.json names, which agree with it and do not repeat a tensor.
class SafetensorsFolder {
 public:
  // Throws Failure naming the file and the tensor or shard.
  explicit SafetensorsFolder(const std::filesystem::path& folder);

  const FileTensor* find_tensor(std::string_view name) const;
  std::vector<const FileTensor*> tensors() const;

  const std::filesystem::path& path() const { return path_; }

  const std::vector<SafetensorsFile>& files() const { return files_; }

 private:
  void open_shards();

  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;
};

// Writes a safetensors file atomically. Tensors keep their order; their dtype is F32, F16 or BF16,
// their names are unique.
void write_safetensors(const std::filesystem::path& path,
                       const std::vector<FileTensor>& tensors,
                       const std::unordered_map<std::string, std::string>& metadata);

}  // namespace droidspeak
