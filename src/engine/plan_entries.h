// What plans take from the store, and how what they leave there is named.
#pragma once

#include <string>
#include <vector>

#include "model/family.h"
#include "sharing/lazy_translator.h"
#include "sharing/reuse_plan.h"
#include "store/cache_key.h"

namespace droidspeak {

std::vector<EntryId> key_value_entries(int32_t num_layers);
std::vector<EntryId> key_value_entries(const std::vector<int32_t>& layers);

// Tokens that are looked at are no part of what is stored. `maps` may be null.
std::string provenance_of(const ReusePlan& plan,
                          int32_t num_layers,
                          const Variant& sender,
                          const LazyTranslator* maps);

}  // namespace droidspeak
