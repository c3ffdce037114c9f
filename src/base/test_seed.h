// For tests: another seed in every run, printed, and taken from DROIDSPEAK_TEST_SEED to see a
// failure again.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace droidspeak {

inline uint32_t test_seed() {
  const char* given = std::getenv("DROIDSPEAK_TEST_SEED");
  uint32_t seed = given != nullptr ? static_cast<uint32_t>(std::strtoul(given, nullptr, 10))
                                   : std::random_device()();
  std::printf("DROIDSPEAK_TEST_SEED=%u\n", seed);
  return seed;
}

}  // namespace droidspeak
