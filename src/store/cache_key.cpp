#include "store/cache_key.h"

#include "tensor/dtype.h"

namespace droidspeak {
namespace {

// Part of every key: raise it when the meaning of stored bytes changes.
constexpr uint64_t kKeyVersion = 2;

void add_digest(Sha256& hash, char tag, const Digest& digest) {
  hash.add_field(tag, std::as_bytes(std::span(digest.bytes)));
}

// The chain's first link: everything but the tokens.
Digest identity_digest(const CacheIdentity& identity) {
  Sha256 hash;
  hash.add_field('v', kKeyVersion);
  hash.add_field('s', identity.salt);
  add_digest(hash, 'm', identity.model);
  add_digest(hash, 'u', identity.configuration);
  add_digest(hash, 'a', identity.adapter);
  hash.add_field('p', identity.provenance);
  hash.add_field('b', static_cast<uint64_t>(kBlockTokens));
  hash.add_field('l', static_cast<uint64_t>(identity.layout.num_layers));
  hash.add_field('h', static_cast<uint64_t>(identity.layout.num_kv_heads));
  hash.add_field('d', static_cast<uint64_t>(identity.layout.head_dim));
  hash.add_field('k', name_of(identity.layout.dtype));
  hash.add_field('i', name_of(identity.input_dtype));
  hash.add_field('c', static_cast<uint64_t>(identity.input_columns));
  hash.add_field('f', static_cast<uint64_t>(identity.formats.disk));
  if (identity.formats.remote != DiskFormat::kRaw)
    hash.add_field('r', static_cast<uint64_t>(identity.formats.remote));
  return hash.finish();
}

}  // namespace

std::vector<Digest> block_keys(const CacheIdentity& identity, std::span<const int32_t> tokens) {
  std::vector<Digest> keys;
  keys.reserve(tokens.size() / kBlockTokens);
  Digest previous = identity_digest(identity);
  while (tokens.size() >= kBlockTokens) {
    Sha256 hash;
    add_digest(hash, 'n', previous);
    hash.add_field('t', std::as_bytes(tokens.first(kBlockTokens)));
    previous = hash.finish();
    keys.push_back(previous);
    tokens = tokens.subspan(kBlockTokens);
  }
  return keys;
}

}  // namespace droidspeak
