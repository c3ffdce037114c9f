// What the system says about its processors.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace droidspeak {

// Cores among these logical processors: hardware threads of one core share its arithmetic units,
// which a pool's threads keep busy. A processor of which nothing is known counts as a core.
int physical_cores(std::span<const int> processors,
                   const std::filesystem::path& system = "/sys/devices/system");

// Numbers as Linux lists them ("0-3,8"); what does not read as such is left out.
std::vector<int> numbers_of(const std::string& list);

// Lets memory that is touched from now on lie on all NUMA nodes in turn, so that threads on any of
// them read at the speed of all. False where there is one node or the system refuses.
bool interleave_memory(void* begin,
                       size_t bytes,
                       const std::filesystem::path& system = "/sys/devices/system");

}  // namespace droidspeak
