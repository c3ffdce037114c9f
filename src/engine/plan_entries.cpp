#include "engine/plan_entries.h"

#include <fmt/format.h>

namespace droidspeak {

std::vector<EntryId> key_value_entries(int32_t num_layers) {
  std::vector<EntryId> entries;
  for (int32_t layer = 0; layer < num_layers; ++layer)
    entries.push_back({EntryKind::kKeyValue, layer});
  return entries;
}

std::vector<EntryId> key_value_entries(const std::vector<int32_t>& layers) {
  std::vector<EntryId> entries;
  for (int32_t layer : layers) entries.push_back({EntryKind::kKeyValue, layer});
  return entries;
}

std::string provenance_of(const ReusePlan& plan,
                          int32_t num_layers,
                          const Variant& sender,
                          const LazyTranslator* maps) {
  return fmt::format("{} from {} {} {} maps {}", plan.layers().to_string(num_layers),
                     sender.model_digest.hex(), sender.adapter_digest.hex(),
                     sender.transformer->configuration().hex(),
                     maps != nullptr ? maps->digest().hex() : "none");
}

}  // namespace droidspeak
