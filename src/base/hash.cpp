#include "base/hash.h"

#include <cstring>

#include <fmt/format.h>
#include <openssl/evp.h>
#include <xxhash.h>

#include "base/check.h"
#include "base/error.h"

namespace droidspeak {

std::string Digest::hex() const {
  std::string text;
  text.reserve(64);
  for (uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

Digest Digest::from_hex(std::string_view hex) {
  auto nibble = [&](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("digest \"{}\": expected 64 lower-case hex digits", hex));
  };
  if (hex.size() != 64) nibble('x');
  Digest digest;
  for (size_t i = 0; i < 32; ++i) {
    digest.bytes[i] = static_cast<uint8_t>(nibble(hex[2 * i]) * 16 + nibble(hex[2 * i + 1]));
  }
  return digest;
}

size_t DigestHash::operator()(const Digest& digest) const {
  size_t value = 0;
  std::memcpy(&value, digest.bytes.data(), sizeof value);
  return value;
}

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();

  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  check(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1, "SHA-256 is available");
}

Sha256::~Sha256() = default;

void Sha256::add(std::span<const std::byte> bytes) {
  check(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1, "SHA-256 update");
}

void Sha256::begin_field(char tag, uint64_t length) {
  std::byte header[9];
  header[0] = static_cast<std::byte>(tag);
  std::memcpy(header + 1, &length, 8);
  add(header);
}

void Sha256::add_field(char tag, std::span<const std::byte> bytes) {
  begin_field(tag, bytes.size());
  add(bytes);
}

void Sha256::add_field(char tag, std::string_view text) {
  add_field(tag, std::as_bytes(std::span(text.data(), text.size())));
}

void Sha256::add_field(char tag, uint64_t value) {
  add_field(tag, std::as_bytes(std::span(&value, 1)));
}

Digest Sha256::finish() {
  Digest digest;
  unsigned length = 0;
  check(EVP_DigestFinal_ex(state_->context, digest.bytes.data(), &length) == 1 && length == 32,
        "SHA-256 final");
  return digest;
}

Digest sha256(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.add(bytes);
  return hash.finish();
}

uint64_t xxhash64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace droidspeak
