#include "store/tiers/remote_value.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include "base/check.h"
#include "base/error.h"

namespace droidspeak {
namespace {

constexpr std::string_view kPurpose = "droidspeak remote value 1";
constexpr size_t kHeaderFixedBytes = 136;  // of a block file's header, with its checksum
constexpr size_t kHeaderEntryBytes = 40;

size_t value_header_bytes(size_t num_entries) {
  return kHeaderFixedBytes + num_entries * kHeaderEntryBytes;
}

Error corrupt(std::string_view what) {
  return {ErrorCode::kDataCorrupt, fmt::format("a remote value {}", what)};
}

std::span<const std::byte> padding(size_t bytes) {
  static constexpr std::byte kZeros[kEntryAlignment] = {};
  return std::span(kZeros).first(bytes);
}

}  // namespace

EntryId first_of_value(EntryId id) {
  if (id.kind == EntryKind::kKeyValue) id.layer -= id.layer % kLayersTogether;
  return id;
}

std::string remote_name(const Digest& key, EntryId id) {
  bool is_kv = id.kind == EntryKind::kKeyValue;
  return fmt::format("ds1:{{{}}}:{}{}", key.hex(), is_kv ? 'k' : 'e', first_of_value(id).layer);
}

void ValueSeal::Mac::Free::operator()(evp_mac_ctx_st* context) const {
  EVP_MAC_CTX_free(context);
}

void ValueSeal::Free::operator()(evp_mac_st* mac) const {
  EVP_MAC_free(mac);
}

void require_poly1305() {
  std::unique_ptr<EVP_MAC, decltype(&EVP_MAC_free)> found(
      EVP_MAC_fetch(nullptr, "POLY1305", nullptr), &EVP_MAC_free);
  if (found != nullptr) return;
  throw Failure(ErrorCode::kUnavailable,
                "--remote-cache and --peer-listen authenticate with Poly1305, which OpenSSL does "
                "not offer on this host: expected one that is not in FIPS mode");
}

ValueSeal::ValueSeal(std::span<const std::byte> secret)
    : secret_(secret.begin(), secret.end()),
      algorithm_(EVP_MAC_fetch(nullptr, "POLY1305", nullptr)) {
  check(algorithm_ != nullptr, "OpenSSL has Poly1305");
}

ValueSeal::~ValueSeal() = default;

ValueSeal::Mac ValueSeal::begin(std::string_view name, const SealTag& salt) const {
  std::vector<unsigned char> text;
  auto append = [&text](std::span<const std::byte> bytes) {
    auto size = static_cast<uint32_t>(bytes.size());
    for (int shift = 0; shift < 32; shift += 8)
      text.push_back(static_cast<unsigned char>(size >> shift));
    for (std::byte byte : bytes) text.push_back(std::to_integer<unsigned char>(byte));
  };
  append(std::as_bytes(std::span(kPurpose)));
  append(std::as_bytes(std::span(name)));
  append(salt);
  std::array<unsigned char, 32> key{};
  unsigned int key_bytes = 0;
  const unsigned char* made = HMAC(EVP_sha256(), secret_.data(), static_cast<int>(secret_.size()),
                                   text.data(), text.size(), key.data(), &key_bytes);
  check(made != nullptr && key_bytes == key.size(), "HMAC-SHA256 gives 32 bytes");
  Mac mac;
  mac.context_.reset(EVP_MAC_CTX_new(algorithm_.get()));
  bool is_ready = mac.context_ != nullptr &&
                  EVP_MAC_init(mac.context_.get(), key.data(), key.size(), nullptr) == 1;
  check(is_ready, "Poly1305 takes a key of 32 bytes");
  OPENSSL_cleanse(key.data(), key.size());
  return mac;
}

void ValueSeal::Mac::add(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  // NOLINTNEXTLINE: bytes as OpenSSL wants them
  auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  check(EVP_MAC_update(context_.get(), data, bytes.size()) == 1, "Poly1305 takes bytes");
}

SealTag ValueSeal::Mac::finish() {
  SealTag tag{};
  size_t size = 0;
  // NOLINTNEXTLINE: bytes as OpenSSL wants them
  auto* data = reinterpret_cast<unsigned char*>(tag.data());
  bool is_done = EVP_MAC_final(context_.get(), data, &size, tag.size()) == 1;
  check(is_done && size == tag.size(), "Poly1305 gives 16 bytes");
  return tag;
}

bool is_same_tag(const SealTag& a, const SealTag& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

SealTag random_salt() {
  SealTag salt{};
  // NOLINTNEXTLINE: bytes as OpenSSL wants them
  int filled =
      RAND_bytes(reinterpret_cast<unsigned char*>(salt.data()), static_cast<int>(salt.size()));
  check(filled == 1, "the system has random bytes");
  return salt;
}

std::unique_ptr<SealedValue> seal_value(const PendingWrite& write,
                                        const BlockEncoding& encoding,
                                        const ValueSeal& seal) {
  auto value = std::make_unique<SealedValue>();
  value->name = remote_name(write.label.key, write.entries.front().id);
  value->image = make_block_image(write, encoding);
  const BlockFileHeader& header = value->image.header;
  size_t header_size = value_header_bytes(header.entries.size());
  std::vector<std::byte> padded = write_header(header);
  auto header_part = std::span(padded).first(header_size);

  RemoteValueHead head{.magic = kRemoteValueMagic,
                       .header_bytes = static_cast<uint32_t>(header_size),
                       .salt = random_salt()};
  value->start.resize(sizeof(head) + header_size);
  std::memcpy(value->start.data() + sizeof(head), header_part.data(), header_size);
  value->pieces.push_back(value->start);
  ValueSeal::Mac mac = seal.begin(value->name, head.salt);
  mac.add(header_part);
  uint64_t at = padded.size();
  for (size_t i = 0; i < header.entries.size(); ++i) {
    for (std::span<const std::byte> piece :
         {padding(header.entries[i].offset - at), value->image.stored[i]}) {
      if (piece.empty()) continue;
      value->pieces.push_back(piece);
      mac.add(piece);
    }
    at = header.entries[i].offset + header.entries[i].stored_bytes;
  }
  head.tag = mac.finish();
  std::memcpy(value->start.data(), &head, sizeof(head));
  for (std::span<const std::byte> piece : value->pieces) value->bytes += piece.size();
  return value;
}

size_t most_value_header_bytes() {
  return value_header_bytes(kLayersTogether);
}

Result<BlockFileHeader> parse_value_header(std::span<const std::byte> header,
                                           uint64_t value_bytes,
                                           const EntryRead& any,
                                           const BlockEncoding& encoding) {
  if (header.size() < value_header_bytes(1) || header.size() > most_value_header_bytes() ||
      (header.size() - kHeaderFixedBytes) % kHeaderEntryBytes != 0) {
    return corrupt("has a header of no possible size");
  }
  uint64_t before_entries = sizeof(RemoteValueHead) + header.size();
  if (value_bytes < before_entries) return corrupt("is cut off");
  std::vector<std::byte> padded(
      header_bytes((header.size() - kHeaderFixedBytes) / kHeaderEntryBytes));
  std::ranges::copy(header, padded.begin());
  Result<BlockFileHeader> parsed =
      parse_header(padded, value_bytes - before_entries + padded.size());
  if (!parsed) return corrupt(parsed.error().message);
  if (value_header_bytes(parsed->entries.size()) != header.size())
    return corrupt("has a header of another size than it says");
  if (parsed->key != any.key) return corrupt("is another block's");
  if (encoding.layout.num_layers > 0 && parsed->layout != encoding.layout)
    return corrupt("is in another layout");
  for (const BlockFileEntry& entry : parsed->entries) {
    if (first_of_value(entry.id) != first_of_value(any.id))
      return corrupt("has an entry of another value");
    if (!encoding.has_size(entry.id, entry.bytes)) return corrupt("has an entry of another size");
  }
  return parsed;
}

}  // namespace droidspeak
