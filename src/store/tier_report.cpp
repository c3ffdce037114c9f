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
    // Where it is not known which of them has the blocks, one slow peer says nothing of the others.
    std::ranges::sort(rates);
    cost.bytes_per_second = rates[rates.size() / 2];
    cost.queued_bytes = longest_queue;
  }
  return cost;
}

std::optional<LinkCost> link_cost(const TierReport& peers,
                                  const std::map<std::string, size_t>& num_blocks) {
  const std::optional<LinkCost> usual = link_cost(peers);
  if (!usual || num_blocks.empty()) return usual;
  LinkCost cost;
  size_t total = 0;
  double longest = 0;  // were each block one byte
  double queued_seconds = 0;
  auto add = [&](size_t blocks, const LinkCost& own) {
    total += blocks;
    longest = std::max(longest, static_cast<double>(blocks) / own.bytes_per_second);
    queued_seconds =
        std::max(queued_seconds, static_cast<double>(own.queued_bytes) / own.bytes_per_second);
    cost.round_trip_seconds = std::max(cost.round_trip_seconds, own.round_trip_seconds);
  };
  std::map<std::string, size_t> not_measured = num_blocks;
  for (const LinkReport& link : peers.links) {
    auto found = not_measured.find(link.address);
    if (found == not_measured.end() || !link.is_up || link.bytes_per_second <= 0) continue;
    add(found->second, {link.round_trip_seconds, link.bytes_per_second, link.queued_bytes});
    not_measured.erase(found);
  }
  for (const auto& [address, blocks] : not_measured) add(blocks, *usual);
  cost.bytes_per_second = static_cast<double>(total) / longest;
  cost.queued_bytes = static_cast<uint64_t>(queued_seconds * cost.bytes_per_second);
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
