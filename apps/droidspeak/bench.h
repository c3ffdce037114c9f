// What the benchmarks share.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "command.h"

namespace droidspeak {

// Random tokens: speed does not depend on the text.
std::vector<int32_t> benchmark_tokens(int32_t count, int32_t vocab_size, uint64_t seed);
double median(std::vector<double> values);
// Throws Failure naming the flag unless all are positive.
void check_counts(const std::vector<int32_t>& counts, std::string_view flag);

}  // namespace droidspeak
