#include "formats/byte_reader.h"

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

std::span<const std::byte> ByteReader::take(size_t size, std::string_view field) {
  if (size > remaining()) {
    fail(
        fmt::format("{}: {} bytes at offset {} reach past the end of the file ({} bytes); the file "
                    "is truncated or damaged",
                    field, size, position_, bytes_.size()));
  }
  std::span<const std::byte> taken = bytes_.subspan(position_, size);
  position_ += size;
  return taken;
}

std::string_view ByteReader::read_string(std::string_view field) {
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
  throw Failure(ErrorCode::kDataCorrupt, fmt::format("{}: {}", file_, message));
}

}  // namespace droidspeak
