// Activated LoRA: an adapter that applies from its invocation on, as PEFT does it. What comes
// before the last place where the prompt has these tokens is computed by the base's weights alone;
// their first token, everything behind it and the answer are the adapter's. A prompt without them
// is the base's, and so is its answer.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "model/family.h"

namespace droidspeak {

inline constexpr int32_t kNeverActive = std::numeric_limits<int32_t>::max();

// The position from which on the adapter applies: 0 for a plain one or none, kNeverActive when an
// activated one is not invoked.
int32_t activation_in(const Adapter* adapter, std::span<const int32_t> prompt);

inline bool is_activated(const Variant& variant) {
  return variant.adapter != nullptr && !variant.adapter->invocation.empty();
}

// What the variant is where its adapter does not apply: the base, under the variant's name.
Variant without_adapter(const Variant& variant);

// Who answers the prompt: the variant, or what it is without its adapter.
std::shared_ptr<const Variant> answering(const std::shared_ptr<const Variant>& variant,
                                         std::span<const int32_t> prompt);

}  // namespace droidspeak
