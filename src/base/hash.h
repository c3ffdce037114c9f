// SHA-256 for identity, xxHash for damage.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace droidspeak {

struct Digest {
  std::array<uint8_t, 32> bytes{};

  std::string hex() const;
  static Digest from_hex(std::string_view hex);  // throws Failure
  auto operator<=>(const Digest&) const = default;
};

struct DigestHash {
  size_t operator()(const Digest& digest) const;
};

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(std::span<const std::byte> bytes);
  // Typed, length-prefixed field: tag byte, 64-bit length, bytes. Two different field lists never
  // hash alike.
  void add_field(char tag, std::span<const std::byte> bytes);
  void add_field(char tag, std::string_view text);
  void add_field(char tag, uint64_t value);
  // The start of such a field, whose `length` bytes follow through add().
  void begin_field(char tag, uint64_t length);
  Digest finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Digest sha256(std::span<const std::byte> bytes);
uint64_t xxhash64(std::span<const std::byte> bytes);

}  // namespace droidspeak
