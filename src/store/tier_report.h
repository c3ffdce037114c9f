// The tiers by name, and what each tells of itself: for costs, metrics, reports and the state page.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace droidspeak {

// From fast to slow, in the order in which they are asked.
enum class Tier : uint8_t { kHost, kDisk, kPeer, kRemote };

inline constexpr size_t kNumTiers = 4;
inline constexpr std::array<Tier, kNumTiers> kAllTiers = {Tier::kHost, Tier::kDisk, Tier::kPeer,
                                                          Tier::kRemote};

// "host", "disk", "peer", "remote": in reports, metrics and the state.
std::string_view tier_name(Tier tier);

// Something by tier, e.g. bytes to load.
template <class T>
using PerTier = std::array<T, kNumTiers>;

using TierSet = std::bitset<kNumTiers>;

inline constexpr size_t index_of(Tier tier) {
  return static_cast<size_t>(tier);
}

// Whether reading from it takes a link, which may be slow or break.
inline constexpr bool is_behind_link(Tier tier) {
  return tier == Tier::kPeer || tier == Tier::kRemote;
}

// One server or node that a tier talks to.
struct LinkReport {
  std::string address;  // host:port
  bool is_up = false;
  double round_trip_seconds = 0;  // 0: not measured yet
  // Of entries as they are used (decoded), over everything that the link carried at a time; 0: not
  // measured yet.
  double bytes_per_second = 0;
  uint64_t queued_bytes = 0;  // of reads that were begun and have not come
  uint64_t failures = 0;      // connections that were lost, refused or gave up waiting
};

struct TierReport {
  Tier tier = Tier::kHost;
  uint64_t hits = 0;
  uint64_t misses = 0;  // reads of what was thought to be there
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  uint64_t evictions = 0;  // by this process
  uint64_t entries = 0;    // blocks held now; of a shared tier those that are known of
  uint64_t bytes = 0;      // held now; 0 for a shared tier
  uint64_t capacity_bytes = 0;
  uint64_t damaged = 0;       // checksum, authentication, header or length was wrong
  uint64_t write_errors = 0;  // full, read-only, ...
  // Blocks that never went there because the writer was too far behind, or the tier is not there.
  uint64_t dropped_writes = 0;
  double read_seconds = 0;  // spent in reads; 0 for host memory
  std::vector<LinkReport> links{};
};

// What a load over the links of a tier costs, those that are up: the blocks of a context are spread
// over the servers of a remote store, and come together; of peers mostly one has all of them.
struct LinkCost {
  double round_trip_seconds = 0;
  double bytes_per_second = 0;
  uint64_t queued_bytes = 0;
};

// Nothing while no link is up and measured.
std::optional<LinkCost> link_cost(const TierReport& tier);
// The same of a load from peers that hold so many of its blocks, by address: the one that takes
// longest says when all are there. One that is not measured counts as the others do.
std::optional<LinkCost> link_cost(const TierReport& peers,
                                  const std::map<std::string, size_t>& num_blocks);

// Whether entries come faster from the one than from the other, by more than measuring could get
// wrong. One that is not measured is not fast.
bool is_faster(const TierReport& one, const TierReport& other);

}  // namespace droidspeak
