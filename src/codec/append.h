// Values to bytes, for what the codec writes.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace droidspeak {

template <class T>
void append(std::vector<std::byte>& bytes, std::span<const T> values) {
  if (values.empty()) return;
  size_t at = bytes.size();
  bytes.resize(at + values.size_bytes());
  std::memcpy(bytes.data() + at, values.data(), values.size_bytes());
}

}  // namespace droidspeak
