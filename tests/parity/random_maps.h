// Translation maps with random values, and the same for the slow reference.
#pragma once

#include <random>
#include <vector>

#include "parity/reference.h"
#include "sharing/translation.h"

namespace droidspeak {

inline LinearMap random_map(std::mt19937& random, int32_t rank, size_t columns) {
  std::normal_distribution<float> normal(0, 0.15f);
  LinearMap map{rank, std::vector<float>(static_cast<size_t>(rank) * columns),
                std::vector<float>(static_cast<size_t>(rank) * columns),
                std::vector<float>(columns)};
  for (std::vector<float>* values : {&map.down, &map.up, &map.bias}) {
    for (float& value : *values) value = normal(random);
  }
  return map;
}

inline ReferenceMap reference_map(const LinearMap& map) {
  auto rank = static_cast<size_t>(map.rank);
  size_t columns = map.bias.size();
  ReferenceMap out{Rows(rank), Rows(columns), Row(map.bias.begin(), map.bias.end())};
  for (size_t r = 0; r < rank; ++r)
    out.down[r].assign(map.down.begin() + static_cast<std::ptrdiff_t>(r * columns),
                       map.down.begin() + static_cast<std::ptrdiff_t>((r + 1) * columns));
  for (size_t c = 0; c < columns; ++c)
    out.up[c].assign(map.up.begin() + static_cast<std::ptrdiff_t>(c * rank),
                     map.up.begin() + static_cast<std::ptrdiff_t>((c + 1) * rank));
  return out;
}

inline ReferenceMaps reference_maps(const TranslationMaps& maps) {
  ReferenceMaps out;
  for (const auto& [layer, map] : maps.kv) out.kv[layer] = reference_map(map);
  for (const auto& [layer, map] : maps.inputs) out.inputs[layer] = reference_map(map);
  return out;
}

}  // namespace droidspeak
