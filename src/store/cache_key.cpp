#include "store/cache_key.h"

#include <algorithm>

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
  if (identity.active_from > 0) hash.add_field('x', static_cast<uint64_t>(identity.active_from));
  hash.add_field('p', identity.provenance);
  hash.add_field('b', static_cast<uint64_t>(kBlockTokens));
  hash.add_field('l', static_cast<uint64_t>(identity.layout.num_layers));
  hash.add_field('h', static_cast<uint64_t>(identity.layout.num_kv_heads));
  hash.add_field('d', static_cast<uint64_t>(identity.layout.head_dim));
  hash.add_field('k', name_of(identity.layout.dtype));
  hash.add_field('i', name_of(identity.input_dtype));
  hash.add_field('c', static_cast<uint64_t>(identity.input_columns));
  hash.add_field('f', static_cast<uint64_t>(identity.formats.disk));
  if (identity.formats.remote != RemoteFormat::kRaw)
    hash.add_field('r', static_cast<uint64_t>(identity.formats.remote));
  if (identity.formats.coding != Digest{}) add_digest(hash, 'w', identity.formats.coding);
  return hash.finish();
}

std::vector<Digest> chain(Digest previous, std::span<const int32_t> tokens) {
  std::vector<Digest> keys;
  keys.reserve(tokens.size() / kBlockTokens);
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

}  // namespace

std::vector<Digest> block_keys(const CacheIdentity& identity, std::span<const int32_t> tokens) {
  std::vector<Digest> keys = chain(identity_digest(identity), tokens);
  size_t num_bare = std::min(keys.size(), static_cast<size_t>(identity.active_from) / kBlockTokens);
  if (num_bare == 0) return keys;
  CacheIdentity bare = identity;
  bare.adapter = {};
  bare.active_from = 0;
  std::ranges::copy(chain(identity_digest(bare), tokens.first(num_bare * kBlockTokens)),
                    keys.begin());
  return keys;
}

}  // namespace droidspeak
