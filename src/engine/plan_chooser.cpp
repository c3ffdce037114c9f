#include "engine/plan_chooser.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"

namespace droidspeak {
namespace {

enum class Maps { kUse, kRaw };

// A plan asked for by name, other than "auto" and "full".
struct NamedPlan {
  ReusePlan plan;
  Maps maps = Maps::kUse;
};

// Throws Failure like parse_plan().
NamedPlan parse_named_plan(std::string_view text, int32_t num_layers) {
  if (text == "reuse") return {ReusePlan::reuse_all(), Maps::kRaw};
  if (text.ends_with('r'))
    return {parse_plan(text.substr(0, text.size() - 1), num_layers), Maps::kRaw};
  return {parse_plan(text, num_layers), Maps::kUse};
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
  return fmt::format("{} from {} {} maps {}", plan.to_string(num_layers), sender.model_digest.hex(),
                     sender.adapter_digest.hex(), maps != nullptr ? maps->digest().hex() : "none");
}

Error invalid(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

}  // namespace

// A sender's exact cache of a prompt.
struct PlanChooser::SenderCache {
  std::shared_ptr<const Variant> sender;
  const PairBook* pair;      // null when sender and receiver are the same
  std::vector<Digest> keys;  // of the leading blocks that have K/V of all layers
};

const PlanChoice& pick(const std::vector<PlanChoice>& candidates,
                       double min_quality,
                       double target_seconds) {
  check(!candidates.empty(), "computing everything is always a candidate");
  const PlanChoice* best = nullptr;
  if (target_seconds > 0) {
    for (const PlanChoice& candidate : candidates) {
      if (candidate.quality < min_quality || candidate.predicted_seconds > target_seconds) continue;
      bool is_better = best == nullptr || candidate.quality > best->quality ||
                       (candidate.quality == best->quality &&
                        candidate.predicted_seconds < best->predicted_seconds);
      if (is_better) best = &candidate;
    }
    if (best != nullptr) return *best;
  }
  for (const PlanChoice& candidate : candidates) {
    if (candidate.quality < std::min(min_quality, 1.0)) continue;
    if (best == nullptr || candidate.predicted_seconds < best->predicted_seconds) best = &candidate;
  }
  return best != nullptr ? *best : candidates.front();
}

Result<void> PlanChooser::validate(const SharingRequest& sharing, const Variant& receiver) const {
  if (sharing.mode != SharingRequest::Mode::kExplicit) return {};
  if (sharing.sender.empty() && sharing.plan == "full") return {};
  auto sender = family_.find(sharing.sender);
  if (!sender)
    return invalid(
        fmt::format("sharing.sender \"{}\": not a model of this family", sharing.sender));
  if (sharing.plan == "full") return {};
  if (sender->name != receiver.name && library_.find(*sender, receiver) == nullptr) {
    return invalid(fmt::format(
        "sharing.sender \"{}\": no plan book was measured for it and receiver \"{}\" as they are "
        "loaded now",
        sender->name, receiver.name));
  }
  if (sharing.plan == "auto") return {};
  try {
    ReusePlan plan = parse_named_plan(sharing.plan, costs_.num_layers()).plan;
    std::vector<int32_t> layers = library_.captured_layers(*sender);
    bool has_input = std::find(layers.begin(), layers.end(), plan.b) != layers.end();
    if (plan.needs_layer_input() && !has_input) {
      return invalid(
          fmt::format("sharing.plan \"{}\": layer inputs of \"{}\" are not stored at layer {}; "
                      "they are at [{}]",
                      sharing.plan, sender->name, plan.b, fmt::join(layers, ", ")));
    }
  } catch (const Failure& failure) {
    return invalid(fmt::format("sharing.plan: {}", failure.what()));
  }
  return {};
}

PlanChoice PlanChooser::choose(const Sequence& sequence, size_t num_waiting) const {
  const SharingRequest& sharing = sequence.request.sharing;
  bool is_by_name = sharing.mode == SharingRequest::Mode::kExplicit;
  if (sequence.request.wants_prompt_logprobs || (is_by_name && sharing.plan == "full")) {
    PlanChoice compute;
    compute.predicted_seconds = predict(sequence, compute);
    return compute;
  }
  if (sequence.num_generated() > 0) return choose_again(sequence);
  if (is_by_name && sharing.plan != "auto") return choose_by_name(sequence);
  double min_quality = sequence.request.min_quality.value_or(options_.min_quality);
  return pick(auto_candidates(sequence), min_quality, target_seconds(sequence, num_waiting));
}

std::vector<Digest> PlanChooser::prompt_keys(const Sequence& sequence,
                                             const Variant& writer,
                                             const std::string& provenance) const {
  CacheIdentity identity =
      exact_identity(writer, sequence.request.cache_salt, options_.layout, options_.input_dtype);
  identity.provenance = provenance;
  return block_keys(identity,
                    std::span(sequence.tokens).first(static_cast<size_t>(sequence.prompt_tokens)));
}

std::vector<Digest> PlanChooser::mixed_keys(const Sequence& sequence,
                                            const std::string& provenance,
                                            size_t num_covered) const {
  std::vector<Digest> keys = prompt_keys(sequence, *sequence.variant, provenance);
  std::vector<Digest> behind = prompt_keys(sequence, *sequence.variant,
                                           fmt::format("{} covers {}", provenance, num_covered));
  num_covered = std::min(num_covered, keys.size());
  std::copy(behind.begin() + static_cast<std::ptrdiff_t>(num_covered), behind.end(),
            keys.begin() + static_cast<std::ptrdiff_t>(num_covered));
  return keys;
}

size_t PlanChooser::stored_blocks(std::span<const Digest> keys) const {
  return store_.longest_prefix(keys, key_value_entries(options_.layout.num_layers));
}

// Computing everything, and the variant's own prefix cache.
std::vector<PlanChoice> PlanChooser::exact_candidates(const Sequence& sequence) const {
  std::vector<PlanChoice> candidates(1);
  candidates[0].predicted_seconds = predict(sequence, candidates[0]);
  auto shareable = std::span(sequence.exact_keys).first(sequence.num_shareable_blocks());
  size_t blocks = stored_blocks(shareable);
  if (blocks > 0) {
    PlanChoice own{
        .source = PlanChoice::Source::kOwnExact,
        .keys = {shareable.begin(), shareable.begin() + static_cast<std::ptrdiff_t>(blocks)}};
    own.predicted_seconds = predict(sequence, own);
    candidates.push_back(std::move(own));
  }
  return candidates;
}

std::vector<PlanChoice> PlanChooser::auto_candidates(const Sequence& sequence) const {
  std::vector<PlanChoice> candidates = exact_candidates(sequence);
  const SharingRequest& sharing = sequence.request.sharing;
  if (sharing.mode == SharingRequest::Mode::kOff || options_.sharing == SharingMode::kOff)
    return candidates;
  if (sharing.mode == SharingRequest::Mode::kExplicit) {
    add_sender(sequence, family_.find(sharing.sender), candidates);
    return candidates;
  }
  for (const auto& variant : family_.variants()) {
    if (variant->name != sequence.variant->name) add_sender(sequence, variant, candidates);
  }
  return candidates;
}

// Everything that the pair's book offers, if there is a book and the sender has read the prompt.
void PlanChooser::add_sender(const Sequence& sequence,
                             const std::shared_ptr<const Variant>& sender,
                             std::vector<PlanChoice>& out) const {
  if (!sender || library_.find(*sender, *sequence.variant) == nullptr) return;
  SenderCache cache = look_up(sequence, sender);
  if (options_.sharing == SharingMode::kPlainReuse) {
    add_entry(sequence, cache, {.plan = ReusePlan::reuse_all(), .quality = {}}, out);
    return;
  }
  for (const PlanEntry& entry : cache.pair->book.frontier) add_entry(sequence, cache, entry, out);
}

PlanChooser::SenderCache PlanChooser::look_up(const Sequence& sequence,
                                              const std::shared_ptr<const Variant>& sender) const {
  SenderCache cache{sender, library_.find(*sender, *sequence.variant),
                    prompt_keys(sequence, *sender, "")};
  cache.keys.resize(sequence.num_shareable_blocks());
  cache.keys.resize(stored_blocks(cache.keys));
  return cache;
}

size_t PlanChooser::blocks_with_input(const SenderCache& cache, const ReusePlan& plan) const {
  if (!plan.needs_layer_input()) return cache.keys.size();
  EntryId input{EntryKind::kLayerInput, plan.b};
  return store_.longest_prefix(cache.keys, std::span(&input, 1));
}

void PlanChooser::add_entry(const Sequence& sequence,
                            const SenderCache& cache,
                            const PlanEntry& entry,
                            std::vector<PlanChoice>& out) const {
  auto maps = entry.translated && cache.pair != nullptr ? cache.pair->maps : nullptr;
  if (entry.translated && (!maps || !maps->is_usable())) return;
  PlanChoice choice{.source = PlanChoice::Source::kSender,
                    .plan = entry.plan,
                    .sender = cache.sender,
                    .maps = maps,
                    .keys = cache.keys,
                    .provenance = provenance_of(entry.plan, options_.layout.num_layers,
                                                *cache.sender, maps.get()),
                    .quality = entry.quality_index};
  PlanChoice mixed = choice;
  find_mixed(sequence, cache, mixed);
  choice.keys.resize(blocks_with_input(cache, entry.plan));
  if (!choice.keys.empty()) {
    choice.predicted_seconds = predict(sequence, choice);
    out.push_back(std::move(choice));
  }
  if (!mixed.keys.empty()) {
    mixed.predicted_seconds = predict(sequence, mixed);
    out.push_back(std::move(mixed));
  }
}

// What the variant has stored of reading this prompt with the plan before; no keys when that is
// nothing.
void PlanChooser::find_mixed(const Sequence& sequence,
                             const SenderCache& cache,
                             PlanChoice& mixed) const {
  mixed.source = PlanChoice::Source::kOwnMixed;
  std::vector<EntryId> own =
      key_value_entries(mixed.plan.recomputed_layer_list(options_.layout.num_layers));
  std::vector<Digest> first = prompt_keys(sequence, *sequence.variant, mixed.provenance);
  first.resize(cache.keys.size());
  size_t covered = own.empty() ? first.size() : store_.longest_prefix(first, own);
  mixed.keys.clear();
  if (covered == 0) return;
  std::vector<Digest> keys = mixed_keys(sequence, mixed.provenance, covered);
  keys.resize(sequence.num_shareable_blocks());
  size_t behind = stored_blocks(std::span(keys).subspan(covered));
  // Without recomputed layers of its own it would be the sender's cache and nothing else.
  if (behind == 0 && own.empty()) return;
  keys.resize(covered + behind);
  mixed.keys = std::move(keys);
  mixed.sender_keys = cache.keys;
  mixed.sender_keys.resize(covered);
}

bool PlanChooser::is_stored(const PlanChoice& choice) const {
  int32_t num_layers = options_.layout.num_layers;
  std::vector<EntryId> reused = key_value_entries(choice.plan.reused_layers(num_layers));
  if (choice.source == PlanChoice::Source::kSender) {
    if (choice.plan.needs_layer_input()) reused.push_back({EntryKind::kLayerInput, choice.plan.b});
    return store_.longest_prefix(choice.keys, reused) == choice.keys.size();
  }
  size_t covered = choice.sender_keys.size();
  std::vector<EntryId> own = key_value_entries(choice.plan.recomputed_layer_list(num_layers));
  auto behind = std::span(choice.keys).subspan(covered);
  return store_.longest_prefix(choice.sender_keys, reused) == covered &&
         store_.longest_prefix(std::span(choice.keys).first(covered), own) == covered &&
         stored_blocks(behind) == behind.size();
}

// An asked-for plan is used even when computing would be faster; only a missing cache changes it.
PlanChoice PlanChooser::choose_by_name(const Sequence& sequence) const {
  const SharingRequest& sharing = sequence.request.sharing;
  NamedPlan named = parse_named_plan(sharing.plan, options_.layout.num_layers);
  auto sender = family_.find(sharing.sender);
  std::vector<PlanChoice> candidates;
  bool is_declared = sender && (sender->name == sequence.variant->name ||
                                library_.find(*sender, *sequence.variant) != nullptr);
  if (is_declared && !named.plan.is_full(options_.layout.num_layers)) {
    SenderCache cache = look_up(sequence, sender);
    bool has_maps =
        named.maps == Maps::kUse && cache.pair != nullptr && cache.pair->maps != nullptr;
    add_entry(sequence, cache, {.plan = named.plan, .translated = has_maps, .quality = {}},
              candidates);
  }
  if (!candidates.empty()) return candidates.front();
  PlanChoice compute;
  compute.predicted_seconds = predict(sequence, compute);
  if (named.plan.is_full(options_.layout.num_layers)) return compute;
  const PairBook* pair = sender ? library_.find(*sender, *sequence.variant) : nullptr;
  if (named.maps == Maps::kUse && pair != nullptr && pair->maps && !pair->maps->is_usable()) {
    compute.fallback = "the maps of the pair cannot be used";
    compute.fallback_kind = "maps_unusable";
  } else {
    compute.fallback = "no cache of the sender";
  }
  return compute;
}

PlanChoice PlanChooser::choose_again(const Sequence& sequence) const {
  const PlanChoice& before = sequence.choice;
  if (before.is_exact()) return pick(exact_candidates(sequence), 1, 0);
  if (is_stored(before)) return before;
  PlanChoice exact = pick(exact_candidates(sequence), 1, 0);
  exact.fallback = "the cache is gone";
  return exact;
}

// What is left of the latency target; 0 when throughput matters more.
double PlanChooser::target_seconds(const Sequence& sequence, size_t num_waiting) const {
  double target = sequence.request.ttft_slo_ms.value_or(options_.ttft_slo_ms) * 1e-3;
  if (target <= 0 || num_waiting > 0) return 0;
  double waited = seconds_between(sequence.submitted, std::chrono::steady_clock::now());
  return std::max(target - waited, 1e-9);
}

bool PlanChooser::has_time(const Sequence& sequence, double seconds) const {
  auto now = std::chrono::steady_clock::now();
  double target = sequence.request.ttft_slo_ms.value_or(options_.ttft_slo_ms) * 1e-3;
  if (target > 0 && seconds_between(sequence.submitted, now) + seconds > target) return false;
  const auto& deadline = sequence.request.deadline;
  return !deadline || seconds_between(now, *deadline) > seconds;
}

double PlanChooser::predict(const Sequence& sequence, const PlanChoice& choice) const {
  PrefillWork work{.context_tokens = choice.num_tokens()};
  work.suffix_tokens = sequence.num_tokens() - work.context_tokens;
  if (!choice.keys.empty()) {
    bool is_sender = choice.source == PlanChoice::Source::kSender;
    work.recomputed_layers = is_sender ? choice.plan.recomputed_layers() : 0;
    auto loaded_layers = static_cast<uint64_t>(options_.layout.num_layers - work.recomputed_layers);
    work.load_bytes = choice.keys.size() * loaded_layers * options_.layout.layer_bytes();
    if (is_sender && choice.plan.needs_layer_input()) {
      int64_t columns = sequence.variant->transformer->config().d_model;
      work.load_bytes += bytes_of(options_.input_dtype, work.context_tokens * columns);
    }
    work.tier = std::max(store_.tier_of(choice.keys), store_.tier_of(choice.sender_keys));
  }
  return costs_.prefill_seconds(work);
}

}  // namespace droidspeak
