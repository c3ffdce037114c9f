// Little-endian reading from the start of an untrusted file, piece by piece: nothing is read, and
// no length believed, beyond the end. Every failure says which file and what was being read.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/file.h"

namespace droidspeak {

// `text` in single quotes, cut when long, with bytes that are not printable ASCII as \xNN: names
// from files go into one-line messages.
std::string in_quotes(std::string_view text);

class ByteReader {
 public:
  // Headers of model files are a few MiB; a longer one is refused before memory is taken for it.
  static constexpr uint64_t kMaxHeaderBytes = uint64_t{256} << 20;

  // `file` outlives the reader.
  explicit ByteReader(const InputFile& file, uint64_t max_header_bytes = kMaxHeaderBytes)
      : file_(file), max_header_bytes_(max_header_bytes) {}

  uint64_t position() const { return window_begin_ + next_; }

  // Bytes that the header may still take.
  uint64_t remaining() const { return std::min(file_.size(), max_header_bytes_) - position(); }

  // `field` says what is read: "tensor count", "value of key 'x'".
  template <class T>
  T read(std::string_view field) {
    static_assert(std::is_arithmetic_v<T> && std::endian::native == std::endian::little);
    T value;
    std::memcpy(&value, take(sizeof value, field).data(), sizeof value);
    return value;
  }

  // Valid until the next call.
  std::span<const std::byte> take(uint64_t size, std::string_view field) {
    if (size > window_.size() - next_) fill(size, field);
    next_ += size;
    return std::span<const std::byte>(window_).subspan(next_ - size, size);
  }

  // A 64-bit length and as many bytes.
  std::string read_string(std::string_view field);

  // A 64-bit count of items that take at least `item_bytes` each; refused when they cannot fit into
  // what is left of the file, so that the count is safe to reserve.
  size_t read_count(size_t item_bytes, std::string_view field);

  [[noreturn]] void fail(std::string_view message) const;  // "FILE: message"

 private:
  // Moves the window so that `size` bytes at the position are in it.
  void fill(uint64_t size, std::string_view field);

  const InputFile& file_;
  uint64_t max_header_bytes_;
  std::vector<std::byte> window_;
  uint64_t window_begin_ = 0;  // in the file
  size_t next_ = 0;            // in the window
};

}  // namespace droidspeak
