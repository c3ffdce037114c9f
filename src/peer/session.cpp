#include "peer/session.h"

#include <cstring>
#include <memory>
#include <vector>

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

struct FreeCipher {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};

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
  std::unique_ptr<EVP_CIPHER_CTX, FreeCipher> cipher(EVP_CIPHER_CTX_new());
  unsigned char nonce[12] = {};
  std::memcpy(nonce, &request_id, sizeof request_id);
  PeerReplyTag tag;
  unsigned char nothing[16];
  int length = 0;
  bool is_done =
      EVP_EncryptInit_ex(cipher.get(), EVP_aes_128_gcm(), nullptr, raw(reply_key_), nonce) == 1 &&
      EVP_EncryptUpdate(cipher.get(), nullptr, &length, raw(head), static_cast<int>(head.size())) ==
          1 &&
      (body.empty() || EVP_EncryptUpdate(cipher.get(), nullptr, &length, raw(body),
                                         static_cast<int>(body.size())) == 1) &&
      EVP_EncryptFinal_ex(cipher.get(), nothing, &length) == 1 &&
      EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_GET_TAG, static_cast<int>(tag.size()),
                          tag.data()) == 1;
  check(is_done, "AES-128-GCM is available");
  return tag;
}

}  // namespace droidspeak
