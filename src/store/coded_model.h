// What coding K/V needs to know of the model that wrote it, beside the layout.
#pragma once

#include <vector>

#include "base/hash.h"
#include "codec/turns.h"

namespace droidspeak {

struct CodedModel {
  Digest base;                           // of the family: its variants share the tables
  KeyRotation rotation;                  // of their K
  std::vector<float> step_factors = {};  // learn_tables.h: Coarseness; empty: none
};

}  // namespace droidspeak
