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

// The same with the RoPE frequencies: where a name has room for one value, tables of another
// rotation need another.
Digest digest_with_rotation(const CodedModel& model);

// How K/V is coded, whatever the base: the version of the form, steps, layers left as they are.
// Part of the keys where entries may be coded, so that those of another form are not asked for.
Digest digest_of_coding(const CodedModel& model);

}  // namespace droidspeak
