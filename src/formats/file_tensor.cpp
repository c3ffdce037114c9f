#include "formats/file_tensor.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "formats/byte_reader.h"
#include "tensor/dequantize.h"

namespace droidspeak {

void TensorBytes::read(std::vector<std::byte>& out) const {
  if (make_) {
    make_(out);
    return check(out.size() == size_, "as many bytes are made as were announced");
  }
  if (!file_) return out.assign(memory_.begin(), memory_.end());
  out.resize(size_);
  file_->read(offset_, out);
}

void TensorBytes::for_each_piece(
    const std::function<void(std::span<const std::byte>)>& body) const {
  constexpr uint64_t kPieceBytes = 1 << 20;
  if (make_) {
    std::vector<std::byte> made;
    read(made);
    return body(made);
  }
  if (!file_) return body(memory_);
  std::vector<std::byte> piece(std::min(size_, kPieceBytes));
  for (uint64_t done = 0; done < size_; done += piece.size()) {
    piece.resize(std::min(size_ - done, kPieceBytes));
    file_->read(offset_ + done, piece);
    body(piece);
  }
}

void FileTensor::read(std::vector<std::byte>& out) const {
  try {
    bytes.read(out);
  } catch (const Failure& failure) {
    throw Failure(failure.code(), fmt::format("tensor {}: {}", in_quotes(name), failure.what()));
  }
}

std::vector<std::byte> FileTensor::read() const {
  std::vector<std::byte> out;
  read(out);
  return out;
}

std::vector<float> FileTensor::read_floats() const {
  int64_t elements = 1;
  for (int64_t size : shape) elements *= size;
  std::vector<float> values(static_cast<size_t>(elements));
  dequantize(dtype, read(), values);
  return values;
}

FileTensor FileTensor::slice(int64_t index) const {
  const uint64_t size = bytes.size() / static_cast<uint64_t>(shape[0]);
  return {name,
          dtype,
          {shape.begin() + 1, shape.end()},
          bytes.part(static_cast<uint64_t>(index) * size, size)};
}

}  // namespace droidspeak
