#include "store/tier_report.h"

#include <algorithm>

#include "base/check.h"

namespace droidspeak {

std::string_view tier_name(Tier tier) {
  switch (tier) {
    case Tier::kHost:
      return "host";
    case Tier::kDisk:
      return "disk";
    case Tier::kPeer:
      return "peer";
    case Tier::kRemote:
      return "remote";
  }
  panic("a tier that is none");
}

std::optional<LinkCost> link_cost(const TierReport& tier) {
  LinkCost cost;
  uint64_t num_links = 0;
  double byte_seconds = 0;
  for (const LinkReport& link : tier.links) {
    if (!link.is_up || link.bytes_per_second <= 0) continue;
    ++num_links;
    byte_seconds += 1 / link.bytes_per_second;
    cost.round_trip_seconds = std::max(cost.round_trip_seconds, link.round_trip_seconds);
    cost.bytes_per_second += link.bytes_per_second;
    cost.queued_bytes += link.queued_bytes;
  }
  if (num_links == 0) return std::nullopt;
  if (tier.tier == Tier::kPeer) {
    cost.bytes_per_second = static_cast<double>(num_links) / byte_seconds;
    cost.queued_bytes /= num_links;
  }
  return cost;
}

bool is_faster(const TierReport& one, const TierReport& other) {
  constexpr double kAlike = 1.1;
  auto rate_of = [](const TierReport& tier) {
    std::optional<LinkCost> cost = link_cost(tier);
    return cost ? cost->bytes_per_second : 0;
  };
  return rate_of(one) > kAlike * rate_of(other);
}

}  // namespace droidspeak
