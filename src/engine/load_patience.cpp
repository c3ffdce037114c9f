#include "engine/load_patience.h"

#include <algorithm>

namespace droidspeak {
namespace {

constexpr int kRestStalls = 10;  // as many times the stall limit a tier is left alone
// A link says sooner than a disk whether it is worth waiting for.
constexpr std::chrono::milliseconds kLinkStall{300};
constexpr std::chrono::milliseconds kLinkJudged{100};
// What links may cost a request that is computed in the end, of the time that computing takes: with
// the time to ask (CacheStore::kAnswerLimit) about a twentieth, and less than half a second. Links
// of machines with other work stand still for moments that say nothing.
constexpr double kMostLostShare = 0.035;
constexpr double kLeastLostSeconds = 0.2;
constexpr double kMostLostSeconds = 0.35;
// Over a link so much is loaded together, by its rate: what is whole is of use when the rest fails.
constexpr double kTogetherSeconds = 0.1;

}  // namespace

TierSet LoadPatience::resting_tiers(const Sequence& sequence, TimePoint now) const {
  TierSet resting;
  bool has_lost_enough = sequence.lost_load_seconds >= most_lost_seconds(sequence);
  for (Tier tier : kAllTiers) {
    size_t i = index_of(tier);
    resting[i] = now < rests_until_[i] || (is_behind_link(tier) && has_lost_enough);
  }
  return resting;
}

double LoadPatience::most_lost_seconds(const Sequence& sequence) const {
  double computing = costs_.compute_seconds(0, sequence.num_tokens(), costs_.num_layers());
  return std::clamp(kMostLostShare * computing, kLeastLostSeconds, kMostLostSeconds);
}

std::chrono::milliseconds LoadPatience::stall_of(Tier tier) const {
  return is_behind_link(tier) ? std::min(stall_, kLinkStall) : stall_;
}

LoadLimits LoadPatience::limits_of(const Sequence& sequence) const {
  const PrefillChoice& choice = sequence.choice;
  auto resident = static_cast<int32_t>(choice.num_resident) * kBlockTokens;
  double saved_layers = costs_.num_layers() - choice.stored.recompute_work();
  LoadLimits limits{.stall = stall_, .judged_after = stall_};
  limits.saved_seconds = [&costs = costs_, resident, saved_layers](int32_t tokens) {
    return costs.compute_seconds(resident, tokens, saved_layers);
  };
  if (!is_behind_link(sequence.load_tier)) return limits;
  limits.stall = stall_of(sequence.load_tier);
  limits.judged_after = std::min(stall_, kLinkJudged);
  limits.lost_seconds = sequence.lost_load_seconds;
  limits.most_lost_seconds = most_lost_seconds(sequence);
  return limits;
}

size_t LoadPatience::blocks_together(Tier tier,
                                     const std::optional<LinkCost>& link,
                                     double block_bytes) {
  if (!is_behind_link(tier)) return 0;
  if (!link) return 1;
  auto blocks = static_cast<size_t>(kTogetherSeconds * link->bytes_per_second / block_bytes);
  return std::max<size_t>(blocks, 1);
}

// A tier is not to blame for time that another one has lost before.
void LoadPatience::note_failure(Sequence& sequence, const LoadFailure& failure, TimePoint now) {
  bool has_stalled = failure.reason == LoadFailure::Reason::kStalled;
  Tier stalled = failure.tier != Tier::kHost ? failure.tier : sequence.load_tier;
  if (has_stalled && stalled != Tier::kHost && sequence.lost_load_seconds == 0)
    rests_until_[index_of(stalled)] = now + kRestStalls * stall_of(stalled);
  if (is_behind_link(sequence.load_tier))
    sequence.lost_load_seconds += sequence.reuse->elapsed_seconds();
}

}  // namespace droidspeak
