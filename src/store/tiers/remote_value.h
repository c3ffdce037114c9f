// One value in the remote store: some entries of one block that are wanted together, as a block
// file has them (block_file.h) less the padding of its header, behind a seal that only those who
// have the family's secret can make. Written down in docs/store_format.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "store/cache_key.h"
#include "store/tiers/block_writer.h"
#include "store/tiers/tier.h"

struct evp_mac_ctx_st;
struct evp_mac_st;

namespace droidspeak {

// The value's name: K/V of kLayersTogether layers from a multiple on, or one layer's input. All of
// a block lie in one slot of a cluster.
std::string remote_name(const Digest& key, EntryId id);
// Stands for all entries that lie in one value.
EntryId first_of_value(EntryId id);

using SealTag = std::array<std::byte, 16>;

// Throws Failure where OpenSSL has none to offer, as on a host in FIPS mode. Nodes that read from
// each other need it as well.
void require_poly1305();

// Authenticates values: Poly1305 with a key of its own for each value, which HMAC-SHA256 makes from
// the secret, the value's name and random bytes. Thread-safe.
class ValueSeal {
 public:
  explicit ValueSeal(std::span<const std::byte> secret);
  ~ValueSeal();

  class Mac {
   public:
    void add(std::span<const std::byte> bytes);
    SealTag finish();

   private:
    friend class ValueSeal;

    struct Free {
      void operator()(evp_mac_ctx_st* context) const;
    };

    std::unique_ptr<evp_mac_ctx_st, Free> context_;
  };

  Mac begin(std::string_view name, const SealTag& salt) const;

 private:
  struct Free {
    void operator()(evp_mac_st* mac) const;
  };

  const std::vector<std::byte> secret_;
  std::unique_ptr<evp_mac_st, Free> algorithm_;
};

SealTag random_salt();
// Without time that tells how much of it is alike.
bool is_same_tag(const SealTag& a, const SealTag& b);

struct RemoteValueHead {
  std::array<char, 4> magic{};
  uint32_t header_bytes = 0;  // of what follows, before the entries
  SealTag salt{};
  SealTag tag{};  // over everything behind it
};

inline constexpr std::array<char, 4> kRemoteValueMagic = {'D', 'S', 'V', '1'};
static_assert(sizeof(RemoteValueHead) == 40);

// A value to be written: its pieces one behind the other. They point into the write and the image.
struct SealedValue {
  std::string name;
  BlockImage image;
  std::vector<std::byte> start;  // head and header
  std::vector<std::span<const std::byte>> pieces;
  uint64_t bytes = 0;
};

// `write` holds entries of one value, and outlives what is made of it.
std::unique_ptr<SealedValue> seal_value(const PendingWrite& write,
                                        const BlockEncoding& encoding,
                                        const ValueSeal& seal);

// The header of a value, from its bytes behind the head; `value_bytes` are those of the whole
// value. kDataCorrupt unless it is one of this block and name, in this layout, of the right sizes.
Result<BlockFileHeader> parse_value_header(std::span<const std::byte> header,
                                           uint64_t value_bytes,
                                           const EntryRead& any,
                                           const BlockEncoding& encoding);
// The most that a value's header takes.
size_t most_value_header_bytes();

}  // namespace droidspeak
