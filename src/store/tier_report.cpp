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

std::optional<LinkCost> link_cost(const std::vector<LinkReport>& links) {
  LinkCost cost;
  for (const LinkReport& link : links) {
    if (!link.is_up || link.bytes_per_second <= 0) continue;
    cost.round_trip_seconds = std::max(cost.round_trip_seconds, link.round_trip_seconds);
    cost.bytes_per_second += link.bytes_per_second;
    cost.queued_bytes += link.queued_bytes;
  }
  if (cost.bytes_per_second <= 0) return std::nullopt;
  return cost;
}

}  // namespace droidspeak
