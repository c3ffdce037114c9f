#include "engine/metrics.h"

#include <algorithm>

namespace droidspeak {

std::vector<double> first_token_bounds() {
  return {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
          1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
}

std::vector<double> output_token_bounds() {
  return {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
          0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
}

std::vector<double> request_bounds() {
  return {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
          30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
}

Histogram::Histogram(std::vector<double> upper_bounds)
    : bounds(std::move(upper_bounds)), counts(bounds.size() + 1) {}

void Histogram::add(double value) {
  auto bucket = std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin();
  ++counts[static_cast<size_t>(bucket)];
  sum += value;
  ++count;
}

void EngineMetrics::keep_variants(const std::set<std::string>& names) {
  std::erase_if(variants, [&](const auto& entry) { return !names.contains(entry.first); });
  for (const std::string& name : names) variants.try_emplace(name);
  std::erase_if(pairs, [&](const auto& entry) {
    return !names.contains(entry.first.first) || !names.contains(entry.first.second);
  });
}

}  // namespace droidspeak
