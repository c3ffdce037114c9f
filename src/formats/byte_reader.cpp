#include "formats/byte_reader.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"

namespace droidspeak {

std::string in_quotes(std::string_view text) {
  constexpr size_t kShown = 120;
  std::string result = "'";
  for (char c : text.substr(0, kShown)) {
    auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      result += c;
    } else {
      result += fmt::format("\\x{:02x}", byte);
    }
  }
  result += text.size() > kShown ? "...'" : "'";
  return result;
}

void ByteReader::fill(uint64_t size, std::string_view field) {
  constexpr uint64_t kWindowBytes = 1 << 20;
  const uint64_t begin = position();
  if (size > file_.size() - begin) {
    fail(
        fmt::format("{}: {} bytes at offset {} reach past the end of the file ({} bytes); the file "
                    "is truncated or damaged",
                    field, size, begin, file_.size()));
  }
  if (size > remaining()) {
    fail(fmt::format("{}: {} bytes at offset {}: the header may take {} bytes in all", field, size,
                     begin, max_header_bytes_));
  }
  window_.resize(std::min(std::max(size, kWindowBytes), remaining()));
  window_begin_ = begin;
  next_ = 0;
  file_.read(begin, window_);
}

std::string ByteReader::read_string(std::string_view field) {
  auto length = read<uint64_t>(field);
  std::span<const std::byte> text = take(length, field);
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}

size_t ByteReader::read_count(size_t item_bytes, std::string_view field) {
  auto count = read<uint64_t>(field);
  if (count > remaining() / item_bytes) {
    fail(fmt::format("{}: a count of {} does not fit into the {} bytes left of the file", field,
                     count, remaining()));
  }
  return count;
}

void ByteReader::fail(std::string_view message) const {
  throw Failure(ErrorCode::kDataCorrupt, fmt::format("{}: {}", file_.path().string(), message));
}

}  // namespace droidspeak
