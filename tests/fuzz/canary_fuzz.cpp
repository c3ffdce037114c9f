// A target that breaks on purpose, in the way that its input names.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input == "overflow") {
    volatile int value = std::numeric_limits<int>::max();
    value = value + 1;
  }
  droidspeak::debug_check(input != "debug_check", "the canary's input");
  return 0;
}
