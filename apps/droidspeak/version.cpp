#include "version.h"

#include <sstream>

#include <fmt/format.h>

#include "ops/cpu/instruction_set.h"

namespace droidspeak {

BuildVersion built_version() {
  BuildVersion version{DROIDSPEAK_VERSION, kBuiltCommit, {}};
  std::istringstream names(DROIDSPEAK_FEATURES);
  for (std::string name; names >> name;) version.features.push_back(name);
  return version;
}

std::string version_text() {
  std::string kernels;
  for (cpu::InstructionSet set : cpu::available_instruction_sets()) {
    kernels += fmt::format(" {}", name_of(set));
  }
  return fmt::format(
      "droidspeak {}\n"
      "commit: {}\n"
      "compiler: {}\n"
      "features: {}\n"
      "CPU kernels for this machine:{}",
      DROIDSPEAK_VERSION, kBuiltCommit, DROIDSPEAK_COMPILER, DROIDSPEAK_FEATURES, kernels);
}

}  // namespace droidspeak
