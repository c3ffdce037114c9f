// A plan as it is measured: which layers, and whether what is reused is translated.
#pragma once

#include <string>

#include "sharing/reuse_plan.h"

namespace droidspeak {

struct TriedPlan {
  ReusePlan plan;
  bool translated = false;

  // "0,16,24" or "0,16,24t".
  std::string key() const {
    return std::to_string(plan.a) + "," + std::to_string(plan.b) + "," + std::to_string(plan.c) +
           (translated ? "t" : "");
  }

  auto operator<=>(const TriedPlan&) const = default;
};

}  // namespace droidspeak
