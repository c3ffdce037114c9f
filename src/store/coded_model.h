// What coding a family's K/V takes to know of it.
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

// By which tables are found: those of other steps, or with other layers left as they are, are
// others. That of the base alone where neither is given.
Digest digest_of(const CodedModel& model);

// Of the steps alone; nothing where none are given.
Digest digest_of_steps(const CodedModel& model);

}  // namespace droidspeak
