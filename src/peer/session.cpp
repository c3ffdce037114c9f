#include "peer/session.h"

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "base/check.h"

namespace droidspeak {
namespace {

const unsigned char* raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

}  // namespace

PeerRequestTag hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> bytes) {
  PeerRequestTag tag;
  unsigned length = 0;
  const unsigned char* done =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), raw(bytes), bytes.size(),
           reinterpret_cast<unsigned char*>(tag.data()), &length);
  check(done != nullptr && length == tag.size(), "HMAC-SHA256 is available");
  return tag;
}

namespace {

struct FreeMac {
  void operator()(EVP_MAC_CTX* context) const { EVP_MAC_CTX_free(context); }
};

EVP_MAC* poly1305() {
  static EVP_MAC* const algorithm = EVP_MAC_fetch(nullptr, "POLY1305", nullptr);
  return algorithm;
}

PeerRequestTag derive(std::string_view secret,
                      std::string_view purpose,
                      const PeerNonce& client,
                      const PeerNonce& server) {
  std::vector<std::byte> text;
  auto add = [&](std::span<const std::byte> part) {
    text.insert(text.end(), part.begin(), part.end());
  };
  add(std::as_bytes(std::span(purpose)));
  add(client);
  add(server);
  return hmac_sha256(std::as_bytes(std::span(secret)), text);
}

}  // namespace

PeerNonce random_nonce() {
  PeerNonce nonce;
  auto* bytes = reinterpret_cast<unsigned char*>(nonce.data());
  check(RAND_bytes(bytes, static_cast<int>(nonce.size())) == 1, "the machine has random bytes");
  return nonce;
}

// The purposes have one length, so that no two texts are alike.
PeerSession::PeerSession(std::string_view secret, const PeerNonce& client, const PeerNonce& server)
    : server_proof_(derive(secret, "droidspeak peer: proof  ", client, server)),
      request_key_(derive(secret, "droidspeak peer: request", client, server)),
      reply_key_(derive(secret, "droidspeak peer: reply  ", client, server)) {}

PeerRequestTag PeerSession::request_tag(std::span<const std::byte> frame) const {
  return hmac_sha256(request_key_, frame);
}

PeerReplyTag PeerSession::reply_tag(uint64_t request_id,
                                    std::span<const std::byte> head,
                                    std::span<const std::byte> body) const {
  std::array<std::byte, sizeof request_id> number;
  std::memcpy(number.data(), &request_id, sizeof request_id);
  PeerRequestTag key = hmac_sha256(reply_key_, number);
  std::unique_ptr<EVP_MAC_CTX, FreeMac> mac(EVP_MAC_CTX_new(poly1305()));
  PeerReplyTag tag;
  size_t length = 0;
  bool is_done = mac != nullptr && EVP_MAC_init(mac.get(), raw(key), key.size(), nullptr) == 1 &&
                 EVP_MAC_update(mac.get(), raw(head), head.size()) == 1 &&
                 (body.empty() || EVP_MAC_update(mac.get(), raw(body), body.size()) == 1) &&
                 EVP_MAC_final(mac.get(), reinterpret_cast<unsigned char*>(tag.data()), &length,
                               tag.size()) == 1;
  check(is_done && length == tag.size(), "Poly1305 is available");
  OPENSSL_cleanse(key.data(), key.size());
  return tag;
}

}  // namespace droidspeak
