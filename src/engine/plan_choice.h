// How a request's prompt is to be prefilled.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"
#include "model/family.h"
#include "sharing/lazy_translator.h"
#include "sharing/reuse_plan.h"
#include "store/cache_store.h"

namespace droidspeak {

struct PlanChoice {
  enum class Source {
    kCompute,   // nothing is taken from the store
    kOwnExact,  // the variant's own prefix cache
    // The variant's own cache of a prompt that it read with `plan` from `sender` before. Of the
    // context it holds the recomputed layers; the others are the sender's still.
    kOwnMixed,
    kSender,  // another variant's exact cache (or its own, when asked for by name)
  };
  Source source = Source::kCompute;
  ReusePlan plan =
      ReusePlan::reuse_all();  // of the reused blocks; for kOwnMixed the one behind the cache
  std::shared_ptr<const Variant> sender = nullptr;       // kSender, kOwnMixed
  std::shared_ptr<const LazyTranslator> maps = nullptr;  // null: raw
  int32_t look_layer = 0;                                // for plans that look at tokens
  std::vector<Digest> keys = {};                         // of the blocks that are not computed
  size_t num_resident = 0;  // leading ones of those: on the device already, shared and not loaded
  std::vector<Digest> sender_keys = {};    // kOwnMixed: of the leading blocks that `sender` shares
  TierSet avoided = {};                    // it is not read from these
  std::string provenance = {};             // of what the prompt becomes; empty: exact
  double quality = 1;                      // 1: as good as full prefill
  double predicted_seconds = 0;            // from admission to the first token
  std::string fallback = {};               // why what was asked for by name cannot be done
  std::string fallback_kind = "no_cache";  // the same for the counter
  // Blocks that the own cache has are computed again, because a plan book wants E that it lacks.
  bool refills_inputs = false;

  bool is_exact() const { return provenance.empty(); }

  bool is_translated() const { return maps != nullptr; }

  // Of those, how many are the sender's.
  int32_t num_sender_tokens() const {
    return source == Source::kOwnMixed ? static_cast<int32_t>(sender_keys.size()) * kBlockTokens
                                       : num_tokens();
  }

  int32_t num_tokens() const { return static_cast<int32_t>(keys.size()) * kBlockTokens; }
};

}  // namespace droidspeak
