// A plan as it is measured: which layers and tokens, and whether what is reused is translated.
#pragma once

#include "sharing/reuse_plan.h"

namespace droidspeak {

struct TriedPlan {
  ReusePlan plan;
  bool translated = false;

  // The same without tokens that are looked at.
  TriedPlan layers() const { return {plan.layers(), translated}; }

  auto operator<=>(const TriedPlan&) const = default;
};

}  // namespace droidspeak
