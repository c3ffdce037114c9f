// A plan in a report, as it could be asked for by name, with an "r" behind where the report says
// that it is not translated.
#pragma once

#include <string>

#include "sharing/reuse_plan.h"

namespace droidspeak {

// Plain reuse that is translated is "0,0,0", since "reuse" alone is raw.
inline std::string name_of_followed(const ReusePlan& plan, bool is_translated, int32_t num_layers) {
  if (is_translated && plan == ReusePlan::reuse_all()) return "0,0,0";
  return plan.to_string(num_layers);
}

}  // namespace droidspeak
