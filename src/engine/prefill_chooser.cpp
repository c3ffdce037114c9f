#include "engine/prefill_chooser.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"

namespace droidspeak {
namespace {

// Of plans for pairs without a book: enough for the default floor, and no better.
constexpr double kUnmeasuredQuality = 0.99;

Error invalid_plan(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

}  // namespace

// What is found for a sequence.
struct PrefillChooser::Search {
  Sequence& sequence;
  TierSet avoided;
  std::vector<TierReport> links;
  std::vector<PrefillChoice> candidates = {};
};

// A sender's exact cache of a prompt.
struct PrefillChooser::SenderCache {
  std::shared_ptr<const Variant> sender;
  const PairBook* pair;      // null when they have the same weights, or there is no book
  std::vector<Digest> keys;  // of the leading blocks that have K/V of all layers
};

const PrefillChoice& pick(const std::vector<PrefillChoice>& candidates,
                          double min_quality,
                          double target_seconds) {
  check(!candidates.empty(), "computing everything is always a candidate");
  const PrefillChoice* best = nullptr;
  if (target_seconds > 0) {
    for (const PrefillChoice& candidate : candidates) {
      if (candidate.quality < min_quality || candidate.predicted_seconds > target_seconds) continue;
      bool is_better = best == nullptr || candidate.quality > best->quality ||
                       (candidate.quality == best->quality &&
                        candidate.predicted_seconds < best->predicted_seconds);
      if (is_better) best = &candidate;
    }
    if (best != nullptr) return *best;
  }
  for (const PrefillChoice& candidate : candidates) {
    if (candidate.quality < std::min(min_quality, 1.0)) continue;
    if (best == nullptr || candidate.predicted_seconds < best->predicted_seconds) best = &candidate;
  }
  return best != nullptr ? *best : candidates.front();
}

std::shared_ptr<const Variant> PrefillChooser::named_sender(const SharingRequest& sharing) const {
  if (sharing.mode != SharingRequest::Mode::kExplicit) return nullptr;
  return sharing.from ? sharing.from : family_.find(sharing.sender);
}

Result<void> PrefillChooser::validate(const SharingRequest& sharing,
                                      const Variant& receiver) const {
  if (sharing.mode != SharingRequest::Mode::kExplicit) return {};
  if (sharing.sender.empty() && sharing.plan == "full") return {};
  auto sender = named_sender(sharing);
  if (!sender)
    return invalid_plan(
        fmt::format("sharing.sender \"{}\": not a model of this family", sharing.sender));
  if (sharing.plan == "full") return {};
  if (std::string misuse = describe_activated_misuse(*sender, receiver, sharing.plan);
      !misuse.empty())
    return invalid_plan("sharing: " + misuse);
  if (is_activated(receiver)) return {};
  const bool is_same = is_same_model(*sender, receiver);
  if (!is_same && !books_.may_share(*sender, receiver)) {
    return invalid_plan(fmt::format(
        "sharing.sender \"{}\": no plan book was measured for it and receiver \"{}\" as they are "
        "loaded now",
        sender->name, receiver.name));
  }
  if (sharing.plan == "auto") return {};
  try {
    ReusePlan plan = parse_plan_request(sharing.plan, costs_.num_layers()).plan;
    if (!is_same && plan.needs_layer_input() && books_.find(*sender, receiver) == nullptr) {
      return invalid_plan(fmt::format(
          "sharing.plan \"{}\": there is no plan book for sender \"{}\" and receiver \"{}\"; "
          "without one, reuse and reuse+S% are possible",
          sharing.plan, sender->name, receiver.name));
    }
    std::vector<int32_t> layers = books_.captured_layers(*sender);
    bool has_input = std::find(layers.begin(), layers.end(), plan.b) != layers.end();
    if (plan.needs_layer_input() && !has_input) {
      return invalid_plan(
          fmt::format("sharing.plan \"{}\": layer inputs of \"{}\" are not stored at layer {}; "
                      "they are at [{}]",
                      sharing.plan, sender->name, plan.b, fmt::join(layers, ", ")));
    }
  } catch (const Failure& failure) {
    return invalid_plan(fmt::format("sharing.plan: {}", failure.what()));
  }
  return {};
}

PrefillChoice PrefillChooser::choose(Sequence& sequence,
                                     size_t num_waiting,
                                     TierSet avoided) const {
  const SharingRequest& sharing = sequence.request.sharing;
  bool is_by_name = sharing.mode == SharingRequest::Mode::kExplicit;
  if (is_by_name && sharing.plan == "full") return compute(sequence);
  if (sequence.reads_every_row()) {
    PrefillChoice choice = compute(sequence);
    if (is_by_name && sharing.plan != "auto" && sequence.num_generated() == 0) {
      choice.fallback = "a result of every token of the prompt is wanted, which caches do not have";
      choice.fallback_kind = "reads_every_token";
    }
    return choice;
  }
  if (sequence.num_generated() > 0) return choose_again(sequence, avoided);
  if (is_by_name && sharing.plan != "auto") return choose_by_name(sequence, avoided);
  Search search{sequence, avoided, store_.link_reports()};
  add_exact(search);
  add_auto(search);
  double min_quality = sequence.request.min_quality.value_or(options_.min_quality);
  return pick(search.candidates, min_quality, target_seconds(sequence, num_waiting));
}

std::optional<PrefillChoice> PrefillChooser::refill_inputs(const Sequence& sequence,
                                                           const PrefillChoice& choice) const {
  bool is_own = choice.source() == PrefillChoice::Source::kOwnExact;
  if (!is_own || options_.sharing == SharingMode::kOff) return std::nullopt;
  std::vector<EntryId> wanted;
  for (int32_t layer : books_.captured_layers(*sequence.variant))
    wanted.push_back({EntryKind::kLayerInput, layer});
  const std::vector<Digest>& keys = choice.stored.own_keys;
  size_t complete = wanted.empty() ? keys.size() : store_.longest_prefix(keys, wanted);
  if (complete == keys.size()) return std::nullopt;
  PrefillChoice refill = choice;
  refill.refills_inputs = true;
  refill.stored.cut(complete);
  refill.num_resident = std::min(refill.num_resident, complete);
  predict(sequence, store_.link_reports(), refill);
  if (!has_time(sequence, refill.predicted_seconds)) return std::nullopt;
  return refill;
}

PrefillChoice PrefillChooser::compute(const Sequence& sequence) const {
  PrefillChoice choice;
  predict(sequence, {}, choice);
  return choice;
}

std::vector<Digest> PrefillChooser::token_keys(const Sequence& sequence,
                                               const Variant& writer,
                                               const std::string& provenance,
                                               size_t num_blocks) const {
  CacheIdentity identity =
      exact_identity(writer, sequence.request.cache_salt, options_.layout, options_.input_dtype);
  identity.provenance = provenance;
  identity.active_from = is_same_model(writer, *sequence.variant) ? sequence.active_from : 0;
  identity.formats = store_.formats();
  std::span<const int32_t> tokens = sequence.tokens;
  return block_keys(identity, tokens.first(std::min(tokens.size(), num_blocks * kBlockTokens)));
}

// A mixed context lies there whole or not at all; what is looked at changes the blocks, so that
// nobody else may hold them.
void PrefillChooser::find_resident(PrefillChoice& choice) const {
  choice.num_resident = 0;
  const StoredContext& stored = choice.stored;
  if (stored.plan.look_permille > 0 || stored.sender_keys.empty()) return;
  if (pool_.longest_prefix(stored.own_keys) == stored.num_blocks())
    choice.num_resident = stored.num_blocks();
}

std::vector<Digest> PrefillChooser::exact_keys(const Sequence& sequence,
                                               const Variant& writer) const {
  return token_keys(sequence, writer, "", sequence.tokens.size() / kBlockTokens);
}

std::vector<Digest> PrefillChooser::mixed_keys(const Sequence& sequence,
                                               const std::string& provenance,
                                               size_t num_covered) const {
  std::vector<Digest> keys = token_keys(sequence, *sequence.variant, provenance, num_covered);
  std::vector<Digest> behind =
      token_keys(sequence, *sequence.variant, fmt::format("{} covers {}", provenance, num_covered),
                 sequence.tokens.size() / kBlockTokens);
  keys.insert(keys.end(), behind.begin() + std::ssize(keys), behind.end());
  return keys;
}

size_t PrefillChooser::stored_blocks(std::span<const Digest> keys) const {
  return store_.longest_prefix(keys, key_value_entries(options_.layout.num_layers));
}

// What lies behind links may be dear, or out of reach: what lies here is a choice of its own then.
void PrefillChooser::add(Search& search, const PrefillChoice& choice) const {
  TierSet links;
  for (Tier tier : kAllTiers) links[index_of(tier)] = is_behind_link(tier);
  TierSet read = add_without(search, choice, search.avoided);
  if ((read & links).any()) add_without(search, choice, search.avoided | links);
}

TierSet PrefillChooser::add_without(Search& search, PrefillChoice choice, TierSet avoided) const {
  choice.stored.avoided = avoided;
  if (avoided.any()) shorten(choice, avoided);
  if (choice.stored.num_blocks() == 0) return {};
  TierSet read = predict(search.sequence, search.links, choice);
  search.candidates.push_back(std::move(choice));
  return read;
}

// To the leading blocks that other tiers have, e.g. because a load has brought them before it
// failed.
void PrefillChooser::shorten(PrefillChoice& choice, TierSet avoided) const {
  StoredContext& stored = choice.stored;
  if (choice.num_resident == stored.num_blocks()) return;
  std::vector<Part> parts = parts_of(choice);
  auto reaches = [&](const Part& part) {
    return part.entries.empty() ? part.keys.size()
                                : store_.longest_prefix(part.keys, part.entries, avoided);
  };
  const size_t covered = stored.sender_keys.size();
  size_t leading = reaches(parts[0]);
  if (!stored.own_keys.empty()) leading = std::min(leading, reaches(parts[1]));
  stored.cut(leading == covered ? leading + choice.num_resident + reaches(parts[2]) : leading);
}

// Computing everything, and the variant's own prefix cache.
void PrefillChooser::add_exact(Search& search) const {
  const Sequence& sequence = search.sequence;
  search.candidates.push_back(compute(sequence));
  auto shareable = std::span(sequence.exact_keys).first(sequence.num_shareable_blocks());
  size_t resident = pool_.longest_prefix(shareable);
  auto known = shareable.first(resident + stored_blocks(shareable.subspan(resident)));
  if (known.empty()) return;
  add(search, {.stored = {.own_keys = {known.begin(), known.end()}}, .num_resident = resident});
}

void PrefillChooser::add_auto(Search& search) const {
  const SharingRequest& sharing = search.sequence.request.sharing;
  if (sharing.mode == SharingRequest::Mode::kOff || options_.sharing == SharingMode::kOff) return;
  if (sharing.mode == SharingRequest::Mode::kExplicit)
    return add_sender(search, named_sender(sharing));
  for (const auto& variant : family_.variants()) {
    if (!is_same_model(*variant, *search.sequence.variant)) add_sender(search, variant);
  }
}

// Everything that the pair's book offers, or the family for pairs without one, if the sender has
// read the prompt.
void PrefillChooser::add_sender(Search& search,
                                const std::shared_ptr<const Variant>& sender) const {
  if (!sender || !books_.may_share(*sender, *search.sequence.variant)) return;
  SenderCache cache = look_up(search.sequence, sender);
  if (cache.keys.empty()) return;
  if (options_.sharing == SharingMode::kPlainReuse)
    return add_entry(search, cache, {.plan = ReusePlan::reuse_all(), .quality = {}});
  if (cache.pair == nullptr) {
    return add_entry(
        search, cache,
        {.plan = *books_.unprofiled(), .quality = {}, .quality_index = kUnmeasuredQuality});
  }
  for (const PlanEntry& entry : cache.pair->book.frontier) add_entry(search, cache, entry);
}

const std::vector<Digest>& PrefillChooser::keys_of(
    Sequence& sequence, const std::shared_ptr<const Variant>& sender) const {
  auto known = std::ranges::find_if(sequence.writer_keys, [&](const WriterKeys& known_keys) {
    return is_same_model(*known_keys.writer, *sender);
  });
  if (known == sequence.writer_keys.end())
    known = sequence.writer_keys.insert(known, {sender, exact_keys(sequence, *sender)});
  return known->keys;
}

std::vector<EntryId> PrefillChooser::all_entries(const Variant& writer) const {
  std::vector<EntryId> entries = key_value_entries(options_.layout.num_layers);
  for (int32_t layer : books_.captured_layers(writer))
    entries.push_back({EntryKind::kLayerInput, layer});
  return entries;
}

PrefillChooser::SenderCache PrefillChooser::look_up(
    Sequence& sequence, const std::shared_ptr<const Variant>& sender) const {
  SenderCache cache{sender, books_.find(*sender, *sequence.variant), keys_of(sequence, sender)};
  cache.keys.resize(sequence.num_shareable_blocks());
  // A load that has failed may have brought what its plan needs, and nothing else.
  if (sequence.num_failed_loads == 0) cache.keys.resize(stored_blocks(cache.keys));
  return cache;
}

size_t PrefillChooser::blocks_with_input(const SenderCache& cache, const ReusePlan& plan) const {
  if (!plan.needs_layer_input()) return cache.keys.size();
  EntryId input{EntryKind::kLayerInput, plan.b};
  return store_.longest_prefix(cache.keys, std::span(&input, 1));
}

void PrefillChooser::add_entry(Search& search, SenderCache cache, const PlanEntry& entry) const {
  auto maps = entry.translated && cache.pair != nullptr ? cache.pair->maps : nullptr;
  if (entry.translated && (!maps || !maps->is_usable())) return;
  if (search.sequence.num_failed_loads > 0) {
    std::vector<int32_t> reused = entry.plan.reused_layers(options_.layout.num_layers);
    cache.keys.resize(store_.longest_prefix(cache.keys, key_value_entries(reused), search.avoided));
  }
  PrefillChoice choice{
      .stored = {.plan = entry.plan, .sender_keys = cache.keys},
      .sender = cache.sender,
      .maps = maps,
      .look_layer = cache.pair != nullptr ? cache.pair->book.first_look_layer()
                                          : default_look_layer(options_.layout.num_layers),
      .provenance =
          provenance_of(entry.plan, options_.layout.num_layers, *cache.sender, maps.get()),
      .quality = entry.quality_index};
  PrefillChoice mixed = choice;
  find_mixed(search.sequence, cache, mixed);
  choice.stored.cut(blocks_with_input(cache, entry.plan));
  add(search, choice);
  add(search, mixed);
}

// What the variant has stored of reading this prompt with the plan before, or nothing.
void PrefillChooser::find_mixed(const Sequence& sequence,
                                const SenderCache& cache,
                                PrefillChoice& mixed) const {
  StoredContext& found = mixed.stored;
  found.sender_keys.clear();
  std::vector<EntryId> own =
      key_value_entries(found.plan.recomputed_layer_list(options_.layout.num_layers));
  size_t covered = cache.keys.size();
  auto stored = [&](size_t num_blocks) {
    return store_.longest_prefix(
        token_keys(sequence, *sequence.variant, mixed.provenance, num_blocks), own);
  };
  if (!own.empty()) covered = stored(1) == 0 ? 0 : stored(covered);  // mostly there is nothing
  if (covered == 0) return;
  std::vector<Digest> keys = mixed_keys(sequence, mixed.provenance, covered);
  keys.resize(sequence.num_shareable_blocks());
  size_t behind = stored_blocks(std::span(keys).subspan(covered));
  keys.resize(covered + behind);
  found.own_keys = std::move(keys);
  found.sender_keys = cache.keys;
  found.sender_keys.resize(covered);
  find_resident(mixed);
  // In the store it would be the sender's cache.
  bool has_own = !own.empty() || behind > 0;
  if (!has_own && mixed.num_resident == 0) found.cut(0);
}

bool PrefillChooser::is_stored(const PrefillChoice& choice) const {
  return std::ranges::all_of(parts_of(choice), [&](const Part& part) {
    return store_.longest_prefix(part.keys, part.entries, choice.stored.avoided) ==
           part.keys.size();
  });
}

Tier PrefillChooser::tier_of(const PrefillChoice& choice) const {
  TierSet tiers = tiers_of(choice);
  Tier slowest = Tier::kHost;
  for (Tier tier : kAllTiers) {
    if (tiers[index_of(tier)]) slowest = tier;
  }
  return slowest;
}

TierSet PrefillChooser::tiers_of(const PrefillChoice& choice) const {
  TierSet tiers;
  for (const Part& part : parts_of(choice)) {
    if (part.entries.empty()) continue;
    PerTier<uint64_t> counts = store_.count_by_tier(part.keys, part.entries, choice.stored.avoided);
    for (size_t i = 0; i < kNumTiers; ++i) tiers[i] = tiers[i] || counts[i] > 0;
  }
  return tiers;
}

size_t PrefillChooser::num_in_memory(PrefillChoice choice) const {
  shorten(choice, TierSet().set().reset(index_of(Tier::kHost)));
  return choice.stored.num_blocks();
}

uint64_t PrefillChooser::load_bytes(const PrefillChoice& choice) const {
  uint64_t entries = 0;
  for (const Part& part : parts_of(choice)) entries += part.keys.size() * part.entries.size();
  return entries * options_.layout.layer_bytes();
}

// An asked-for plan is used even when computing would be faster; only a missing cache changes it.
// What the variant has stored of following it before saves following it again, where it reaches as
// far.
PrefillChoice PrefillChooser::choose_by_name(Sequence& sequence, TierSet avoided) const {
  const SharingRequest& sharing = sequence.request.sharing;
  PlanRequest named = parse_plan_request(sharing.plan, options_.layout.num_layers);
  if (named.plan.is_full(options_.layout.num_layers)) return compute(sequence);
  if (is_activated(*sequence.variant)) return choose_base(sequence, avoided);
  auto sender = named_sender(sharing);
  const PairBook* pair = sender ? books_.find(*sender, *sequence.variant) : nullptr;
  bool has_maps = !named.is_raw && pair != nullptr && pair->maps != nullptr;
  Search search{sequence, avoided, store_.link_reports()};
  if (sender &&
      (is_same_model(*sender, *sequence.variant) || books_.may_share(*sender, *sequence.variant))) {
    SenderCache cache = look_up(sequence, sender);
    if (!cache.keys.empty())
      add_entry(search, cache, {.plan = named.plan, .translated = has_maps, .quality = {}});
  }
  if (!search.candidates.empty()) {
    return *std::ranges::min_element(search.candidates, {}, [](const PrefillChoice& candidate) {
      return std::pair(-candidate.num_sender_tokens(), candidate.predicted_seconds);
    });
  }
  PrefillChoice choice = compute(sequence);
  if (has_maps && !pair->maps->is_usable()) {
    choice.fallback = "the maps of the pair cannot be used";
    choice.fallback_kind = "maps_unusable";
  } else {
    choice.fallback = "no cache of the sender";
  }
  return choice;
}

// The base's cache is what an activated LoRA itself has in front of its invocation.
PrefillChoice PrefillChooser::choose_base(Sequence& sequence, TierSet avoided) const {
  Search search{sequence, avoided, store_.link_reports()};
  add_exact(search);
  PrefillChoice choice = *std::ranges::max_element(
      search.candidates, {}, [](const PrefillChoice& own) { return own.stored.num_blocks(); });
  bool takes_some = choice.stored.num_blocks() > 0 && sequence.num_base_blocks() > 0;
  if (!takes_some) choice.fallback = "no cache of the sender";
  return choice;
}

PrefillChoice PrefillChooser::choose_exact(Sequence& sequence, TierSet avoided) const {
  Search search{sequence, avoided, store_.link_reports()};
  add_exact(search);
  return pick(search.candidates, 1, 0);
}

PrefillChoice PrefillChooser::choose_again(Sequence& sequence, TierSet avoided) const {
  const PrefillChoice& before = sequence.choice;
  if (before.is_exact()) return choose_exact(sequence, avoided);
  PrefillChoice again = before;
  find_resident(again);
  again.stored.avoided = avoided;
  if (is_stored(again)) {
    again.links = work_of(sequence, store_.link_reports(), again).links;
    return again;
  }
  PrefillChoice exact = choose_exact(sequence, avoided);
  exact.fallback = "the cache is gone";
  return exact;
}

// What is left of the latency target; 0 when throughput matters more.
double PrefillChooser::target_seconds(const Sequence& sequence, size_t num_waiting) const {
  double target = sequence.request.ttft_slo_ms.value_or(options_.ttft_slo_ms) * 1e-3;
  if (target <= 0 || num_waiting > 0) return 0;
  double waited = seconds_between(sequence.submitted, std::chrono::steady_clock::now());
  return std::max(target - waited, 1e-9);
}

bool PrefillChooser::has_time(const Sequence& sequence, double seconds) const {
  auto now = std::chrono::steady_clock::now();
  double target = sequence.request.ttft_slo_ms.value_or(options_.ttft_slo_ms) * 1e-3;
  if (target > 0 && seconds_between(sequence.submitted, now) + seconds > target) return false;
  const auto& deadline = sequence.request.deadline;
  return !deadline || seconds_between(now, *deadline) > seconds;
}

TierSet PrefillChooser::predict(const Sequence& sequence,
                                std::span<const TierReport> links,
                                PrefillChoice& choice) const {
  const PrefillWork work = work_of(sequence, links, choice);
  choice.predicted_seconds = costs_.prefill_seconds(work);
  choice.links = work.links;
  TierSet read;
  for (size_t i = 0; i < kNumTiers; ++i) read[i] = work.load_bytes[i] > 0;
  return read;
}

PrefillWork PrefillChooser::work_of(const Sequence& sequence,
                                    std::span<const TierReport> links,
                                    const PrefillChoice& choice) const {
  PrefillWork work{.context_tokens = choice.num_tokens()};
  work.suffix_tokens = sequence.num_tokens() - work.context_tokens;
  work.recompute_work = choice.stored.recompute_work();
  work.looked_at_tokens = choice.stored.plan.looked_at_tokens(choice.num_sender_tokens());
  if (work.looked_at_tokens > 0)
    work.second_suffix_tokens = sequence.num_tokens() - choice.num_sender_tokens();
  const int64_t columns = sequence.variant->transformer->config().d_model;
  const size_t input_bytes = bytes_of(options_.input_dtype, kBlockTokens * columns);
  auto bytes_of_kind = [&](EntryKind kind) {
    return kind == EntryKind::kKeyValue ? options_.layout.layer_bytes() : input_bytes;
  };
  PerTier<std::vector<Digest>> keys;  // of blocks that lie behind links
  auto look_up = [&](const Part& part) {
    const std::vector<std::optional<Tier>> tiers =
        store_.tiers_of(part.keys, part.entries, choice.stored.avoided);
    auto tier = tiers.begin();
    for (const Digest& key : part.keys) {
      for (EntryId entry : part.entries) {
        const std::optional<Tier> found = *tier++;
        if (!found) continue;
        work.load_bytes[index_of(*found)] += bytes_of_kind(entry.kind);
        std::vector<Digest>& there = keys[index_of(*found)];
        if (is_behind_link(*found) && (there.empty() || there.back() != key)) there.push_back(key);
      }
    }
  };
  auto count = [&](const Part& part) {
    for (EntryKind kind : {EntryKind::kKeyValue, EntryKind::kLayerInput}) {
      std::vector<EntryId> entries;
      std::ranges::copy_if(part.entries, std::back_inserter(entries),
                           [kind](EntryId id) { return id.kind == kind; });
      const PerTier<uint64_t> counts =
          store_.count_by_tier(part.keys, entries, choice.stored.avoided);
      for (size_t i = 0; i < kNumTiers; ++i) work.load_bytes[i] += counts[i] * bytes_of_kind(kind);
    }
  };
  for (const Part& part : parts_of(choice)) {
    if (links.empty()) {
      count(part);
    } else {
      look_up(part);
    }
  }
  for (Tier tier : kAllTiers) {
    if (work.load_bytes[index_of(tier)] > 0)
      work.links[index_of(tier)] = store_.link_cost_of(tier, keys[index_of(tier)], links);
  }
  return work;
}

}  // namespace droidspeak
