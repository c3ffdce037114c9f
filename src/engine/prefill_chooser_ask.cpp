// The part of PrefillChooser that asks tiers what they have, before a request waits for its turn.
#include "engine/prefill_chooser.h"

namespace droidspeak {
namespace {

constexpr size_t kMostMixtures = 64;  // that other nodes are asked for

}  // namespace

// Two round trips at most: exact caches and the first block of each mixed one, then the rest of
// those that are there.
void PrefillChooser::ask_tiers(Sequence& sequence) const {
  bool is_computed = sequence.reads_every_row() || sequence.num_shareable_blocks() == 0;
  if (!store_.has_tiers_to_ask() || is_computed) return;
  sequence.exact_keys = exact_keys(sequence, *sequence.variant);
  std::vector<Question> questions;
  auto add_exact = [&](std::vector<Digest> keys, const Variant& writer) {
    keys.resize(sequence.num_shareable_blocks());
    questions.push_back({std::move(keys), all_entries(writer)});
  };
  add_exact(sequence.exact_keys, *sequence.variant);
  std::vector<Mixture> mixtures;
  for (const auto& sender : possible_senders(sequence)) {
    add_exact(keys_of(sequence, sender), *sender);
    add_mixtures(sequence, sender, mixtures);
  }
  for (const Mixture& mixture : mixtures) {
    if (!mixture.own.empty())
      questions.push_back(
          {token_keys(sequence, *sequence.variant, mixture.provenance, 1), mixture.own});
  }
  auto until = std::chrono::steady_clock::now() + CacheStore::kAnswerLimit;
  ask(questions, until);
  ask(rest_of(sequence, mixtures), until);
}

void PrefillChooser::ask(std::span<const Question> questions, TimePoint until) const {
  for (const Question& question : questions) store_.ask(question.keys, question.entries);
  for (const Question& question : questions)
    store_.wait_for_answers(question.keys, question.entries, until);
}

std::vector<std::shared_ptr<const Variant>> PrefillChooser::possible_senders(
    const Sequence& sequence) const {
  const SharingRequest& sharing = sequence.request.sharing;
  bool is_off = sharing.mode == SharingRequest::Mode::kOff || options_.sharing == SharingMode::kOff;
  std::vector<std::shared_ptr<const Variant>> senders;
  if (is_off) return senders;
  if (sharing.mode != SharingRequest::Mode::kExplicit) {
    senders = family_.variants();
  } else if (auto named = named_sender(sharing)) {
    senders.push_back(std::move(named));
  }
  std::erase_if(senders, [&](const auto& sender) {
    return is_same_model(*sender, *sequence.variant) ||
           !books_.may_share(*sender, *sequence.variant);
  });
  return senders;
}

// Those that add_entry() would look for.
void PrefillChooser::add_mixtures(const Sequence& sequence,
                                  const std::shared_ptr<const Variant>& sender,
                                  std::vector<Mixture>& mixtures) const {
  const int32_t num_layers = options_.layout.num_layers;
  const PairBook* pair = books_.find(*sender, *sequence.variant);
  auto add_plan = [&](const ReusePlan& plan, const LazyTranslator* maps) {
    if (plan.is_full(num_layers) || mixtures.size() >= kMostMixtures) return;
    mixtures.push_back({sender, provenance_of(plan, num_layers, *sender, maps),
                        key_value_entries(plan.recomputed_layer_list(num_layers))});
  };
  auto maps = [&](bool is_translated) {
    return is_translated && pair != nullptr ? pair->maps.get() : nullptr;
  };
  const SharingRequest& sharing = sequence.request.sharing;
  if (sharing.mode == SharingRequest::Mode::kExplicit && sharing.plan != "auto") {
    PlanRequest named = parse_plan_request(sharing.plan, num_layers);
    return add_plan(named.plan, maps(!named.is_raw));
  }
  if (options_.sharing == SharingMode::kPlainReuse)
    return add_plan(ReusePlan::reuse_all(), nullptr);
  if (pair == nullptr) return add_plan(*books_.unprofiled(), nullptr);
  for (const PlanEntry& entry : pair->book.frontier) add_plan(entry.plan, maps(entry.translated));
}

// How far a sender's cache reaches is known by now, and so are the keys of what lies behind it.
std::vector<PrefillChooser::Question> PrefillChooser::rest_of(
    Sequence& sequence, std::span<const Mixture> mixtures) const {
  std::vector<Question> questions;
  for (const Mixture& mixture : mixtures) {
    auto first = token_keys(sequence, *sequence.variant, mixture.provenance, 1);
    if (!mixture.own.empty() && store_.longest_prefix(first, mixture.own) == 0) continue;
    std::vector<Digest> sender_keys = keys_of(sequence, mixture.sender);
    sender_keys.resize(sequence.num_shareable_blocks());
    size_t covered = stored_blocks(sender_keys);
    if (covered == 0) continue;
    std::vector<Digest> keys = mixed_keys(sequence, mixture.provenance, covered);
    keys.resize(sequence.num_shareable_blocks());
    auto behind = keys.begin() + static_cast<std::ptrdiff_t>(covered);
    if (!mixture.own.empty()) questions.push_back({{keys.begin(), behind}, mixture.own});
    if (behind != keys.end()) {
      questions.push_back({{behind, keys.end()}, key_value_entries(options_.layout.num_layers)});
    }
  }
  return questions;
}

}  // namespace droidspeak
