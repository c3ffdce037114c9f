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
  std::vector<double> rates;
  uint64_t longest_queue = 0;
  for (const LinkReport& link : tier.links) {
    if (!link.is_up || link.bytes_per_second <= 0) continue;
    rates.push_back(link.bytes_per_second);
    longest_queue = std::max(longest_queue, link.queued_bytes);
    cost.round_trip_seconds = std::max(cost.round_trip_seconds, link.round_trip_seconds);
    cost.bytes_per_second += link.bytes_per_second;
    cost.queued_bytes += link.queued_bytes;
  }
  if (rates.empty()) return std::nullopt;
  if (tier.tier == Tier::kPeer) {
    // Which of them has the blocks is not known here; one slow peer says nothing of the others.
    std::ranges::sort(rates);
    cost.bytes_per_second = rates[rates.size() / 2];
    cost.queued_bytes = longest_queue;
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
