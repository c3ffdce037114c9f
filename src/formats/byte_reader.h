// Little-endian reading inside a byte range, for untrusted files: nothing is read, and no length
// believed, beyond the end. Every failure says which file and what was being read.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace droidspeak {

// `text` in single quotes, cut when long, with bytes that are not printable ASCII as \xNN: names
// from files go into one-line messages.
std::string in_quotes(std::string_view text);

class ByteReader {
 public:
  // `file` is named in messages. Both outlive the reader.
  ByteReader(std::span<const std::byte> bytes, std::string_view file)
      : bytes_(bytes), file_(file) {}

  size_t position() const { return position_; }

  size_t remaining() const { return bytes_.size() - position_; }

  // `field` says what is read: "tensor count", "value of key 'x'".
  template <class T>
  T read(std::string_view field) {
    static_assert(std::is_arithmetic_v<T> && std::endian::native == std::endian::little);
    T value;
    std::memcpy(&value, take(sizeof value, field).data(), sizeof value);
    return value;
  }

  std::span<const std::byte> take(size_t size, std::string_view field);

  // A 64-bit length and as many bytes, valid while the file is mapped.
  std::string_view read_string(std::string_view field);

  // A 64-bit count of items that take at least `item_bytes` each; refused when they cannot fit into
  // what is left of the file, so that the count is safe to reserve.
  size_t read_count(size_t item_bytes, std::string_view field);

  [[noreturn]] void fail(std::string_view message) const;  // "FILE: message"

 private:
  std::span<const std::byte> bytes_;
  std::string_view file_;
  size_t position_ = 0;
};

}  // namespace droidspeak
