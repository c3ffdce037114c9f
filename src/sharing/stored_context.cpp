#include "sharing/stored_context.h"

#include <numeric>

#include <fmt/format.h>

namespace droidspeak {
namespace {

std::vector<Digest> keys_behind(const std::vector<Digest>& keys, size_t num_blocks) {
  num_blocks = std::min(num_blocks, keys.size());
  return {keys.begin() + static_cast<std::ptrdiff_t>(num_blocks), keys.end()};
}

}  // namespace

std::vector<int32_t> StoredContext::loaded_layers(int32_t num_layers) const {
  if (own_keys.empty()) return plan.reused_layers(num_layers);
  std::vector<int32_t> all(static_cast<size_t>(num_layers));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

const Digest& StoredContext::key_of(size_t block, int32_t layer) const {
  const bool has_own_layer = !own_keys.empty() && plan.recomputes(layer);
  return block >= sender_keys.size() || has_own_layer ? own_keys[block] : sender_keys[block];
}

void StoredContext::cut(size_t num_blocks) {
  sender_keys.resize(std::min(sender_keys.size(), num_blocks));
  own_keys.resize(std::min(own_keys.size(), num_blocks));
}

StoredContext StoredContext::behind(size_t num_blocks) const {
  return {plan, keys_behind(sender_keys, num_blocks), keys_behind(own_keys, num_blocks), avoided};
}

std::vector<StoredContext::Part> StoredContext::parts(int32_t num_layers,
                                                      size_t first_block) const {
  auto blocks = [&](const std::vector<Digest>& keys, size_t begin, size_t end) {
    begin = std::min(std::max(begin, first_block), keys.size());
    return std::span(keys).subspan(begin, std::clamp(end, begin, keys.size()) - begin);
  };
  const size_t covered = sender_keys.size();
  std::vector<EntryId> reused = key_value_entries(plan.reused_layers(num_layers));
  if (input_layer() >= 0) reused.push_back({EntryKind::kLayerInput, input_layer()});
  return {{blocks(sender_keys, 0, covered), std::move(reused)},
          {blocks(own_keys, 0, covered), key_value_entries(plan.recomputed_layer_list(num_layers))},
          {blocks(own_keys, covered, own_keys.size()), key_value_entries(num_layers)}};
}

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
