// What `droidspeak --version` and GET /version say.
#pragma once

#include <string>

#include "base/build_version.h"

namespace droidspeak {

extern const char* const kBuiltCommit;  // of a source that cmake/commit.cmake writes at each build

BuildVersion built_version();
std::string version_text();

}  // namespace droidspeak
