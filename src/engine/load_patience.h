// How long loads are waited for, how much of them comes together, and which tiers are left alone
// after one from there has stalled.
#pragma once

#include <chrono>
#include <optional>

#include "engine/cost_model.h"
#include "engine/sequence.h"
#include "store/tier_report.h"

namespace droidspeak {

class LoadPatience {
 public:
  // The reference outlives this. `stall`: for tiers that are not behind a link.
  LoadPatience(const CostModel& costs, std::chrono::milliseconds stall)
      : costs_(costs), stall_(stall) {}

  // That the sequence should not read from at this time.
  TierSet resting_tiers(const Sequence& sequence, TimePoint now) const;
  // Of loading what the sequence has chosen from its load_tier.
  LoadLimits limits_of(const Sequence& sequence) const;
  // Over a link of this cost, for blocks of about so many bytes; 0: all of them.
  static size_t blocks_together(Tier tier, const std::optional<LinkCost>& link, double block_bytes);
  // What its loads over links may lose in all, should it be computed in the end.
  double most_lost_seconds(const Sequence& sequence) const;
  // The sequence's load has failed at this time.
  void note_failure(Sequence& sequence, const LoadFailure& failure, TimePoint now);

 private:
  std::chrono::milliseconds stall_of(Tier tier) const;

  const CostModel& costs_;
  const std::chrono::milliseconds stall_;
  PerTier<TimePoint> rests_until_ = {};
};

}  // namespace droidspeak
