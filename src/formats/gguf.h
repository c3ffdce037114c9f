// GGUF v2/v3 files. Everything is validated while opening: counts, lengths, offsets and sizes lie
// inside the file. Tensors are read when they are asked for. A model that was split into several
// files is opened by its first part, which has the metadata; the others bring tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "formats/file_tensor.h"

namespace droidspeak {

// Integers of every width become int64/uint64, float32/64 double. Arrays are homogeneous.
using GgufValue = std::variant<uint64_t,
                               int64_t,
                               double,
                               bool,
                               std::string,
                               std::vector<int64_t>,
                               std::vector<double>,
                               std::vector<std::string>>;

class GgufFile {
 public:
  // Throws Failure naming file, field and value when anything is wrong or unsupported.
  explicit GgufFile(const std::filesystem::path& path);
  // A file that must be whole, with a header of at most so many bytes.
  GgufFile(std::shared_ptr<const InputFile> file, uint64_t max_header_bytes);

  const std::filesystem::path& path() const { return files_.front()->path(); }

  // The file, or all parts of a split one.
  std::vector<const InputFile*> files() const;

  const std::vector<FileTensor>& tensors() const { return tensors_; }

  const FileTensor* find_tensor(std::string_view name) const;

  // Metadata. The typed getters throw Failure naming file and key when it is missing or of another
  // type; `find` returns null.
  const GgufValue* find(std::string_view key) const;
  std::string get_string(std::string_view key) const;
  int64_t get_int(std::string_view key) const;
  double get_double(std::string_view key) const;
  int64_t get_int_or(std::string_view key, int64_t fallback) const;
  double get_double_or(std::string_view key, double fallback) const;
  bool get_bool_or(std::string_view key, bool fallback) const;
  std::string get_string_or(std::string_view key, std::string fallback) const;
  const std::vector<std::string>& get_strings(std::string_view key) const;

  const std::unordered_map<std::string, GgufValue>& metadata() const { return metadata_; }

 private:
  // One part alone.
  explicit GgufFile(std::shared_ptr<const InputFile> file);
  void parse(uint64_t max_header_bytes);
  void join_parts();

  std::vector<std::shared_ptr<const InputFile>> files_;
  std::unordered_map<std::string, GgufValue> metadata_;
  std::vector<FileTensor> tensors_;
  std::unordered_map<std::string, size_t> tensor_index_;
};

}  // namespace droidspeak
