// What coding K/V needs to know of the model that wrote it, beside the layout.
#pragma once

#include <vector>

#include "base/hash.h"

namespace droidspeak {

struct CodedModel {
  Digest base;                            // of the family: its variants share the tables
  std::vector<float> rope_frequencies{};  // radians per position of each pair; empty: unknown
};

}  // namespace droidspeak
