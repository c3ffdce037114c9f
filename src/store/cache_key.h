// Identity of cached blocks. A block's key is a SHA-256 chain: everything that shapes the values of
// a block (who wrote it, for whom, in which layout, which tokens came before) is in its key, so a
// cache of another model, adapter, tenant or layout can never be found by accident.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "kv/kv_cache.h"

namespace droidspeak {

// How blocks lie on disk. What comes back from int8 and coded is not what was put.
enum class DiskFormat { kRaw, kInt8, kCoded };

// How blocks lie in the remote tier; kAuto: each as is fastest over the link of whoever writes it.
enum class RemoteFormat { kRaw, kInt8, kCoded, kAuto };

// Where what is stored may lie, and how.
struct StoredFormats {
  DiskFormat disk = DiskFormat::kRaw;
  RemoteFormat remote = RemoteFormat::kRaw;  // kRaw without a remote tier, too
  Digest coding{};                           // where K/V may be coded: how (coded_model.h)
};

// Who wrote a cache. Digests cover weights, not names.
struct CacheIdentity {
  Digest model;             // base or full checkpoint
  Digest configuration;     // how its weights are used: see configuration_digest()
  Digest adapter;           // all zero: none
  int32_t active_from = 0;  // position from which on the adapter applies
  std::string salt;         // tenant
  std::string provenance;   // empty: exact. Otherwise what mixed it, e.g. "0,16,24 from <sender
                            // digest>": such caches serve only their own model and plan
  KvLayout layout;
  DType input_dtype = DType::kF32;  // of layer inputs (E)
  int32_t input_columns = 0;        // d_model
  StoredFormats formats{};
};

// Keys of the full blocks of `tokens`, in order; a trailing part of fewer than kBlockTokens has
// none. Blocks that end where the adapter begins to apply, or before, are those of the identity
// without it.
std::vector<Digest> block_keys(const CacheIdentity& identity, std::span<const int32_t> tokens);

// What is stored under a block's key: K/V of one layer, or the input of one layer (E).
enum class EntryKind : uint8_t { kKeyValue = 1, kLayerInput = 2 };

struct EntryId {
  EntryKind kind = EntryKind::kKeyValue;
  int32_t layer = 0;
  auto operator<=>(const EntryId&) const = default;
};

}  // namespace droidspeak
