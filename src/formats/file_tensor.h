// A tensor as it lies in a file. Its bytes are read when they are asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "tensor/dtype.h"

namespace droidspeak {

// Bytes in a file, in memory that outlives them (a tensor that is still to be written), or made of
// other tensors when they are asked for.
class TensorBytes {
 public:
  TensorBytes() = default;

  TensorBytes(std::span<const std::byte> memory)  // NOLINT(google-explicit-constructor)
      : memory_(memory), size_(memory.size()) {}

  TensorBytes(std::shared_ptr<const InputFile> file, uint64_t offset, uint64_t size)
      : file_(std::move(file)), offset_(offset), size_(size) {}

  // `make` fills in exactly `size` bytes or throws Failure.
  TensorBytes(uint64_t size, std::function<void(std::vector<std::byte>&)> make)
      : make_(std::move(make)), size_(size) {}

  uint64_t size() const { return size_; }

  bool are_made() const { return static_cast<bool>(make_); }

  // Not for bytes that are made. `size` bytes from `offset` on, which lie inside these.
  TensorBytes part(uint64_t offset, uint64_t size) const {
    if (file_) return {file_, offset_ + offset, size};
    return memory_.subspan(offset, size);
  }

  // These throw Failure naming the file when it has become shorter.
  void read(std::vector<std::byte>& out) const;
  // All bytes in order, a piece at a time.
  void for_each_piece(const std::function<void(std::span<const std::byte>)>& body) const;

 private:
  std::span<const std::byte> memory_;
  std::shared_ptr<const InputFile> file_;
  std::function<void(std::vector<std::byte>&)> make_;
  uint64_t offset_ = 0;
  uint64_t size_ = 0;
};

struct FileTensor {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;  // outermost first: a matrix is [rows, columns]
  TensorBytes bytes;

  // These throw Failure naming file and tensor when they cannot be read.
  void read(std::vector<std::byte>& out) const;
  std::vector<std::byte> read() const;
  std::vector<float> read_floats() const;  // all elements

  // Number `index` of what lies side by side along the outermost dimension.
  FileTensor slice(int64_t index) const;
};

}  // namespace droidspeak
