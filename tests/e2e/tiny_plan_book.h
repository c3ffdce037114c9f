// A plan book for the tests' tiny family: made-up figures, but the digests of the real variants, so
// that the engine uses it.
#pragma once

#include <filesystem>
#include <string>

#include "model/family.h"
#include "ops/ops.h"

namespace droidspeak {

// For sender "base": plain reuse of quality 0.9, and 0,1,3 of quality 0.995.
void write_tiny_plan_book(const std::filesystem::path& path,
                          Ops& ops,
                          const FamilyFile& file,
                          const std::string& receiver);

}  // namespace droidspeak
