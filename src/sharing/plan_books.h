// The plan books of a family with their translation maps, which are read when they are first
// needed. Immutable after construction; a book counts only for variants whose digests it was
// measured with, so that replacing an adapter or changing how weights are used silences its books.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/activation.h"
#include "model/family.h"
#include "sharing/lazy_translator.h"
#include "sharing/plan_book.h"

namespace droidspeak {

// Names the two that a book is measured with, and notes their digests.
void set_pair(PlanBook& book, const Variant& sender, const Variant& receiver);

// Whether there can be a sender and a receiver that both are measured with.
bool may_be_for_one_pair(const PlanBook& a, const PlanBook& b);

struct PairBook {
  std::filesystem::path file;
  PlanBook book;
  std::shared_ptr<const LazyTranslator> maps;  // null: it has none

  // Nothing when two of the loaded variants are those it was measured with.
  std::optional<std::string> why_unused(const ModelFamily& family) const;
};

// Whose cache it is follows from the weights and how they are used, not from a name that may stand
// for others by now.
inline bool is_same_model(const Variant& a, const Variant& b) {
  return a.model_digest == b.model_digest && a.adapter_digest == b.adapter_digest &&
         a.transformer->configuration() == b.transformer->configuration();
}

// An activated LoRA computes in front of its invocation what its base does: there it takes and
// leaves the base's own caches, with every layer and exactly, and has no other plans.
inline bool takes_exactly(const Variant& receiver, const Variant& sender) {
  return is_activated(receiver) && is_same_model(sender, without_adapter(receiver));
}

// What is wrong with a sender and a plan (text of parse_plan_request()) where one of the two is an
// activated LoRA; empty: nothing, or neither is.
std::string describe_activated_misuse(const Variant& sender,
                                      const Variant& receiver,
                                      std::string_view plan);

// A plan that a command follows, with what it needs of the pair's book.
struct ChosenPlan {
  ReusePlan plan;
  std::shared_ptr<const Translator> translator;  // null: raw
  std::string shown;                             // as in a report
  int32_t look_layer = 0;
};

class PlanBooks {
 public:
  // Throws Failure naming the file when a book cannot be read, or the header of its maps, or when
  // they are not those of the book or do not fit the model, or two books are for one pair, or when
  // pairs without a book cannot follow the family's plan for them. `ops` outlives this.
  PlanBooks(Ops& ops, const ModelConfig& config, const FamilyFile& family);

  // Null when no book was measured with these two.
  const PairBook* find(const Variant& sender, const Variant& receiver) const;
  // Layers at which E of `sender` is kept, ascending: what any book of its needs.
  std::vector<int32_t> captured_layers(const Variant& sender) const;

  const std::vector<PairBook>& pairs() const { return pairs_; }

  // For pairs without a book, which is never translated and needs no E; nothing: they share
  // nothing.
  const std::optional<ReusePlan>& unprofiled() const { return unprofiled_; }

  // Whether there are plans for these two.
  bool may_share(const Variant& sender, const Variant& receiver) const {
    if (is_activated(sender) || is_activated(receiver)) return false;
    return unprofiled_ || find(sender, receiver) != nullptr;
  }

  // File and reason of each book that is not used.
  std::vector<std::string> unused(const ModelFamily& family) const;

  // What a command asks for, on a pair. `auto` takes the cheapest plan with quality_index >= floor,
  // without a book the family's plan for such pairs, full prefill when there is none; an activated
  // LoRA takes its base's cache. Throws Failure when the maps cannot be used, or the plan is none
  // for an activated LoRA.
  ChosenPlan choose(const PlanRequest& request,
                    const Variant& sender,
                    const Variant& receiver,
                    double floor = 0.99) const;

 private:
  ChosenPlan choose_activated(const PlanRequest& request,
                              const Variant& sender,
                              const Variant& receiver) const;

  const int32_t num_layers_;
  std::vector<PairBook> pairs_;
  std::optional<ReusePlan> unprofiled_;
};

}  // namespace droidspeak
