// What the benchmarks share.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "command.h"
#include "model/family.h"

namespace droidspeak {

// Random tokens: speed does not depend on the text.
std::vector<int32_t> benchmark_tokens(int32_t count, int32_t vocab_size, uint64_t seed);
// Puts the invocation of an activated LoRA at the beginning of `tokens`, so that it is measured.
// Throws Failure when it does not fit.
void invoke(const Variant& variant, std::span<int32_t> tokens);
double median(std::vector<double> values);
// Throws Failure naming the flag unless all are positive.
void check_counts(const std::vector<int32_t>& counts, std::string_view flag);

}  // namespace droidspeak
