// How a request's prompt is to be prefilled.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "model/family.h"
#include "sharing/lazy_translator.h"
#include "sharing/stored_context.h"
#include "store/tier_report.h"

namespace droidspeak {

struct PrefillChoice {
  StoredContext stored = {};  // what is not computed; empty: everything is
  size_t num_resident = 0;    // leading blocks of it: on the device already, shared and not loaded
  std::shared_ptr<const Variant> sender = nullptr;       // kSender, kOwnMixed
  std::shared_ptr<const LazyTranslator> maps = nullptr;  // null: raw
  int32_t look_layer = 0;                                // for plans that look at tokens
  std::string provenance = {};                           // of what the prompt becomes; empty: exact
  double quality = 1;                                    // 1: as good as full prefill
  double predicted_seconds = 0;                          // from admission to the first token
  PerTier<std::optional<LinkCost>> links = {};           // that it loads over, by that prediction
  std::string fallback = {};               // why what was asked for by name cannot be done
  std::string fallback_kind = "no_cache";  // the same for the counter
  // Blocks that the own cache has are computed again, because a plan book wants E that it lacks.
  bool refills_inputs = false;

  enum class Source {
    kCompute,   // nothing is taken from the store
    kOwnExact,  // the variant's own prefix cache
    // The variant's own cache of a prompt that it read with the plan from `sender` before. Of the
    // context it holds the recomputed layers; the others are the sender's still.
    kOwnMixed,
    kSender,  // another variant's exact cache (or its own, when asked for by name)
  };

  Source source() const {
    if (stored.own_keys.empty())
      return stored.sender_keys.empty() ? Source::kCompute : Source::kSender;
    return stored.sender_keys.empty() ? Source::kOwnExact : Source::kOwnMixed;
  }

  bool is_exact() const { return provenance.empty(); }

  bool is_translated() const { return maps != nullptr; }

  int32_t num_tokens() const { return static_cast<int32_t>(stored.num_blocks()) * kBlockTokens; }

  // Of those, how many are the sender's.
  int32_t num_sender_tokens() const {
    return static_cast<int32_t>(stored.sender_keys.size()) * kBlockTokens;
  }
};

}  // namespace droidspeak
