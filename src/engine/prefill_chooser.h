// Chooses how a prompt is prefilled: which cache in the store, if any, and with which plan.
//
// Every possibility is a PrefillChoice with a quality and a predicted time; computing everything is
// always one of them. Below the quality floor nothing is chosen. While requests wait, or without a
// latency target, the fastest wins; otherwise the best quality that meets the target, or the
// fastest when none does. Loading that is dearer than computing loses by its predicted time.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/cost_model.h"
#include "engine/prefill_choice.h"
#include "engine/request.h"
#include "engine/sequence.h"
#include "sharing/plan_books.h"

namespace droidspeak {

struct ChooserOptions {
  SharingMode sharing = SharingMode::kOn;
  double ttft_slo_ms = 0;
  double min_quality = 0.99;
  KvLayout layout = {};
  DType input_dtype = DType::kF32;  // of layer inputs
};

// A pure function over the candidates, by the rule above. `target_seconds` 0: none. Never empty.
const PrefillChoice& pick(const std::vector<PrefillChoice>& candidates,
                          double min_quality,
                          double target_seconds);

class PrefillChooser {
 public:
  // All references outlive the chooser.
  PrefillChooser(const ModelFamily& family,
                 const PlanBooks& books,
                 const CacheStore& store,
                 const BlockPool& pool,
                 const CostModel& costs,
                 const ChooserOptions& options)
      : family_(family),
        books_(books),
        store_(store),
        pool_(pool),
        costs_(costs),
        options_(options) {}

  // What is wrong with an explicit sharing request: kInvalidArgument. Any thread.
  Result<void> validate(const SharingRequest& sharing, const Variant& receiver) const;

  // Who is meant by an explicit request's sender; null for others, and when there is none.
  std::shared_ptr<const Variant> named_sender(const SharingRequest& sharing) const;

  // Asks tiers that lie elsewhere for what the prompt may be read from, and waits for their
  // answers, for a short while at most. Any thread; before the sequence is chosen for.
  void ask_tiers(Sequence& sequence) const;

  // `num_waiting`: requests behind this one. A sequence that has generated tokens already keeps to
  // what it did the first time, so that preemption does not change its output.
  PrefillChoice choose(Sequence& sequence, size_t num_waiting, TierSet avoided = {}) const;
  // What computes the blocks of the variant's own cache that lack E which plan books want, and
  // leaves the others as `choice` has them. Nothing when none lacks any, or there is no time.
  std::optional<PrefillChoice> refill_inputs(const Sequence& sequence,
                                             const PrefillChoice& choice) const;

  // The slowest tier that the choice is read from, and all of them.
  Tier tier_of(const PrefillChoice& choice) const;
  TierSet tiers_of(const PrefillChoice& choice) const;
  // Leading blocks of the choice that are on the device, or could be read from host memory.
  size_t num_in_memory(PrefillChoice choice) const;

  // About what loading it takes in.
  uint64_t load_bytes(const PrefillChoice& choice) const;

  // Whether the request can wait for so long without missing its latency target or deadline.
  bool has_time(const Sequence& sequence, double seconds) const;

  // Keys of the full blocks of the tokens so far as the variant itself computes them.
  std::vector<Digest> exact_keys(const Sequence& sequence, const Variant& writer) const;
  // The same where the variant reads the prompt with a plan of this provenance, whose first
  // `num_covered` blocks come from the sender: what follows them depends on how many they are.
  std::vector<Digest> mixed_keys(const Sequence& sequence,
                                 const std::string& provenance,
                                 size_t num_covered) const;
  // How many of them are in the store with all layers.
  size_t stored_blocks(std::span<const Digest> keys) const;

 private:
  struct Search;
  struct SenderCache;
  using Part = StoredContext::Part;

  // Blocks that tiers are asked for.
  struct Question {
    std::vector<Digest> keys;
    std::vector<EntryId> entries;
  };

  // What the variant may have stored of reading with a plan, here or at another node.
  struct Mixture {
    std::shared_ptr<const Variant> sender;
    std::string provenance;
    std::vector<EntryId> own;  // of the blocks that the sender covers
  };

  void ask(std::span<const Question> questions, TimePoint until) const;
  std::vector<std::shared_ptr<const Variant>> possible_senders(const Sequence& sequence) const;
  void add_mixtures(const Sequence& sequence,
                    const std::shared_ptr<const Variant>& sender,
                    std::vector<Mixture>& mixtures) const;
  std::vector<Question> rest_of(Sequence& sequence, std::span<const Mixture> mixtures) const;

  std::vector<Digest> token_keys(const Sequence& sequence,
                                 const Variant& writer,
                                 const std::string& provenance,
                                 size_t num_blocks) const;
  // Looks on the device for what the choice takes of a mixed cache.
  void find_resident(PrefillChoice& choice) const;
  const std::vector<Digest>& keys_of(Sequence& sequence,
                                     const std::shared_ptr<const Variant>& sender) const;
  std::vector<EntryId> all_entries(const Variant& writer) const;
  SenderCache look_up(Sequence& sequence, const std::shared_ptr<const Variant>& sender) const;
  void add_exact(Search& search) const;
  void add_auto(Search& search) const;
  void add_sender(Search& search, const std::shared_ptr<const Variant>& sender) const;
  void add_entry(Search& search, SenderCache cache, const PlanEntry& entry) const;
  void add(Search& search, const PrefillChoice& choice) const;
  // The tiers that it would read from.
  TierSet add_without(Search& search, PrefillChoice choice, TierSet avoided) const;
  void shorten(PrefillChoice& choice, TierSet avoided) const;
  void find_mixed(const Sequence& sequence, const SenderCache& cache, PrefillChoice& mixed) const;
  PrefillChoice choose_again(Sequence& sequence, TierSet avoided) const;
  PrefillChoice choose_exact(Sequence& sequence, TierSet avoided) const;
  PrefillChoice choose_base(Sequence& sequence, TierSet avoided) const;
  PrefillChoice choose_by_name(Sequence& sequence, TierSet avoided) const;
  PrefillChoice compute(const Sequence& sequence) const;
  double target_seconds(const Sequence& sequence, size_t num_waiting) const;

  // What the choice loads.
  std::vector<Part> parts_of(const PrefillChoice& choice) const {
    return choice.stored.parts(options_.layout.num_layers, choice.num_resident);
  }

  bool is_stored(const PrefillChoice& choice) const;
  // Sets what it costs, by these reports; the tiers that it would read from.
  TierSet predict(const Sequence& sequence,
                  std::span<const TierReport> links,
                  PrefillChoice& choice) const;
  PrefillWork work_of(const Sequence& sequence,
                      std::span<const TierReport> links,
                      const PrefillChoice& choice) const;
  size_t blocks_with_input(const SenderCache& cache, const ReusePlan& plan) const;

  const ModelFamily& family_;
  const PlanBooks& books_;
  const CacheStore& store_;
  const BlockPool& pool_;
  const CostModel& costs_;
  ChooserOptions options_;
};

}  // namespace droidspeak
