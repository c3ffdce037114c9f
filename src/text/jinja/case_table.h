// Unicode case mappings of single code points above ASCII.
#pragma once

#include <cstdint>
#include <span>

namespace droidspeak::jinja {

// Code points first, first + stride, ... last change by delta.
struct CaseRange {
  uint32_t first;
  uint32_t last;
  uint32_t stride;
  int32_t delta;
};

// Sorted by `first`.
std::span<const CaseRange> lower_case_ranges();
std::span<const CaseRange> upper_case_ranges();

}  // namespace droidspeak::jinja
