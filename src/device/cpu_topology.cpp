#include "device/cpu_topology.h"

#include <charconv>
#include <cstdint>
#include <fstream>
#include <set>

#include <sys/syscall.h>
#include <unistd.h>

namespace droidspeak {
namespace {

std::string first_line(const std::filesystem::path& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

}  // namespace

std::vector<int> numbers_of(const std::string& list) {
  constexpr int kMost = 1 << 16;
  std::vector<int> numbers;
  const char* at = list.data();
  const char* end = at + list.size();
  while (at < end) {
    int first = 0;
    auto parsed = std::from_chars(at, end, first);
    if (parsed.ec != std::errc()) break;
    int last = first;
    if (parsed.ptr < end && *parsed.ptr == '-') {
      parsed = std::from_chars(parsed.ptr + 1, end, last);
      if (parsed.ec != std::errc()) break;
    }
    if (first < 0 || last >= kMost) break;
    for (int number = first; number <= last; ++number) numbers.push_back(number);
    at = parsed.ptr + 1;  // behind the comma
  }
  return numbers;
}

int physical_cores(std::span<const int> processors, const std::filesystem::path& system) {
  std::set<std::string> cores;
  for (int processor : processors) {
    const std::string name = "cpu" + std::to_string(processor);
    const std::string siblings =
        first_line(system / "cpu" / name / "topology" / "thread_siblings_list");
    cores.insert(siblings.empty() ? name : siblings);
  }
  return static_cast<int>(cores.size());
}

bool interleave_memory([[maybe_unused]] void* begin,
                       [[maybe_unused]] size_t bytes,
                       const std::filesystem::path& system) {
  constexpr int kBits = 64;
  const std::vector<int> nodes = numbers_of(first_line(system / "node" / "has_memory"));
  uint64_t mask = 0;
  for (int node : nodes) {
    if (node < kBits) mask |= uint64_t{1} << node;
  }
  if ((mask & (mask - 1)) == 0) return false;
#if defined(SYS_mbind)
  constexpr int kInterleave = 3;
  return syscall(SYS_mbind, begin, bytes, kInterleave, &mask, kBits + 1, 0) == 0;
#else
  return false;
#endif
}

}  // namespace droidspeak
