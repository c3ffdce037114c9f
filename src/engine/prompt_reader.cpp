#include "engine/prompt_reader.h"

#include <algorithm>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "base/check.h"
#include "base/clock.h"
#include "engine/batch.h"
#include "sharing/followed_plan.h"

namespace droidspeak {
namespace {

// Maps that take longer to read, once, are left to later requests.
constexpr std::chrono::milliseconds kMapsPatience{2000};
constexpr int32_t kMostFailedLoads = 8;  // of one sequence, before it is computed
constexpr size_t kMostRefills = 4096;    // remembered

// Of the cache that the sequence has taken, how much is another variant's: the sender's, or the
// base's where an activated LoRA has found its own.
int32_t num_shared_tokens(const Sequence& sequence) {
  const PrefillChoice& choice = sequence.choice;
  if (choice.sender) return choice.num_sender_tokens();
  if (!is_activated(*sequence.variant)) return 0;
  size_t num_blocks = std::min(choice.stored.num_blocks(), sequence.num_base_blocks());
  return static_cast<int32_t>(num_blocks) * kBlockTokens;
}

// Of a name in a report (empty: nothing was loaded) and one more tier that was read from.
std::string slower_of(const std::string& before, Tier tier) {
  const auto* known = std::ranges::find(kAllTiers, before, &tier_name);
  return std::string(tier_name(known == kAllTiers.end() ? tier : std::max(*known, tier)));
}

// Whether an answer that has begun with one goes on with the other to the same tokens.
bool goes_on_as(const PrefillChoice& before, const PrefillChoice& now) {
  const bool are_exact = before.is_exact() && now.is_exact();
  return are_exact || (before.provenance == now.provenance &&
                       before.num_sender_tokens() == now.num_sender_tokens());
}

}  // namespace

bool PromptReader::begin(Sequence& sequence, size_t num_waiting) {
  if (!start(sequence, num_waiting)) return false;
  if (sequence.was_admitted) return true;
  sequence.was_admitted = true;
  sequence.admitted = std::chrono::steady_clock::now();
  sequence.report.queue_ms = seconds_between(sequence.submitted, sequence.admitted) * 1e3;
  parts_.metrics.update([&](EngineMetrics& metrics) {
    metrics.queue_seconds.add(sequence.report.queue_ms * 1e-3);
    metrics.count(sequence.variant->name, [&](RequestCounters& counters) {
      counters.prompt_tokens += static_cast<uint64_t>(sequence.prompt_tokens);
      if (!sequence.request.wants_embedding)
        counters.prefix_cache_queries += static_cast<uint64_t>(sequence.prompt_tokens);
    });
  });
  return true;
}

bool PromptReader::start(Sequence& sequence, size_t num_waiting) {
  choose(sequence, num_waiting);
  std::shared_ptr<const Translator> translator = read_maps(sequence, num_waiting);
  if (!sequence.choice.fallback.empty())
    count_fallback(sequence, sequence.choice.fallback_kind, sequence.choice.fallback);
  refill_inputs(sequence, num_waiting);
  if (!take_blocks(sequence)) return false;
  if (sequence.choice.stored.num_blocks() > 0) {
    start_reuse(sequence, std::move(translator));
  } else if (sequence.num_generated() == 0) {
    sequence.report.tier.clear();  // of loads that were in vain
  }
  start_looking(parts_.ops, sequence);
  writer_.start(sequence);
  return true;
}

// A disk that hangs would cost every request the stall limit, and a thread each.
void PromptReader::choose(Sequence& sequence, size_t num_waiting) {
  sequence.choice = parts_.chooser.choose(sequence, num_waiting);
  TierSet resting = patience_.resting_tiers(sequence, std::chrono::steady_clock::now());
  if (resting.none()) return;
  TierSet avoided = resting & parts_.chooser.tiers_of(sequence.choice);
  if (avoided.none()) return;
  sequence.choice = parts_.chooser.choose(sequence, num_waiting, resting);
  // An answer that has begun goes on as before when other tiers have all that it needs.
  if (sequence.num_generated() > 0 && sequence.choice.fallback.empty()) return;
  Tier tier = *std::ranges::find_if(kAllTiers, [&](Tier t) { return avoided[index_of(t)]; });
  count_fallback(sequence, fmt::format("{}_avoided", tier_name(tier)),
                 fmt::format("a load from {} has stalled a moment ago", tier_name(tier)));
}

// Maps that turn out to be unusable are never offered again, so every new choice has fewer of them.
std::shared_ptr<const Translator> PromptReader::read_maps(Sequence& sequence, size_t num_waiting) {
  while (sequence.choice.maps != nullptr) {
    Result<std::shared_ptr<const Translator>> translator = sequence.choice.maps->get(kMapsPatience);
    if (translator) return *translator;
    std::string reason = translator.error().message;
    spdlog::error("maps of {} -> {} are not used: {}", sequence.choice.sender->name,
                  sequence.variant->name, reason);
    choose(sequence, num_waiting);
    if (sequence.choice.fallback.empty()) count_fallback(sequence, "maps_unusable", reason);
  }
  return nullptr;
}

// Contexts that were read before a plan book was there lack its E. The next reader computes them
// again, once, while nobody waits.
void PromptReader::refill_inputs(Sequence& sequence, size_t num_waiting) {
  bool is_in_a_hurry = num_waiting > 0 || sequence.num_failed_loads > 0;
  if (is_in_a_hurry || sequence.num_generated() > 0) return;
  std::optional<PrefillChoice> refill = parts_.chooser.refill_inputs(sequence, sequence.choice);
  if (!refill) return;
  if (refilled_.size() >= kMostRefills) refilled_.clear();
  if (refilled_.insert(sequence.choice.stored.own_keys.back()).second)
    sequence.choice = std::move(*refill);
}

// What is on the device already is shared.
bool PromptReader::take_blocks(Sequence& sequence) {
  BlockPool& pool = parts_.kv.pool();
  for (size_t i = 0; i < sequence.choice.num_resident; ++i) {
    std::optional<BlockLease> lease = pool.find(sequence.choice.stored.own_keys[i]);
    check(lease.has_value(), "what the chooser has found is there");
    sequence.blocks.append(std::move(*lease));
  }
  if (sequence.blocks.reserve(pool, sequence.num_tokens())) return true;
  sequence.blocks.clear();
  return false;
}

void PromptReader::start_reuse(Sequence& sequence, std::shared_ptr<const Translator> translator) {
  sequence.num_computed = sequence.choice.num_tokens();
  if (sequence.choice.num_resident < sequence.choice.stored.num_blocks())
    return start_load(sequence, std::move(translator));
  if (sequence.num_generated() == 0) sequence.report.tier = "device";
  report_reuse(sequence);
  parts_.metrics.update([](EngineMetrics& metrics) { ++metrics.hits_by_tier["device"]; });
}

// Here the choice becomes work: what it takes is loaded on a transfer thread from now on, what it
// recomputes follows with recompute().
void PromptReader::start_load(Sequence& sequence, std::shared_ptr<const Translator> translator) {
  const PrefillChoice& choice = sequence.choice;
  auto resident = static_cast<std::ptrdiff_t>(choice.num_resident);
  const auto end = static_cast<std::ptrdiff_t>(choice.stored.num_blocks());
  sequence.load_tier = parts_.chooser.tier_of(choice);
  const double block_bytes =
      static_cast<double>(parts_.chooser.load_bytes(choice)) / static_cast<double>(end - resident);
  std::span<const int32_t> blocks = sequence.blocks.blocks();
  ReuseJob job{
      .receiver = sequence.variant,
      .context = {sequence.tokens.begin() + resident * kBlockTokens,
                  sequence.tokens.begin() + end * kBlockTokens},
      .translator = std::move(translator),
      .load = {.stored = choice.stored.behind(choice.num_resident),
               .blocks = {blocks.begin() + resident, blocks.begin() + end},
               .blocks_together = LoadPatience::blocks_together(
                   sequence.load_tier, choice.links[index_of(sequence.load_tier)], block_bytes),
               .limits = patience_.limits_of(sequence),
               .on_progress = parts_.on_progress}};
  bool is_in_memory = sequence.load_tier == Tier::kHost;
  TransferThreads& threads = is_in_memory ? parts_.host_threads : parts_.slow_threads;
  sequence.reuse = std::make_unique<ContextReuse>(
      ContextReuse::Parts{parts_.ops, parts_.kv, parts_.store, threads}, std::move(job));
}

// Waits for the device, so that the time is not taken for that of the next batch.
void PromptReader::recompute(Sequence& sequence, int32_t num_tokens) {
  int32_t begin = sequence.reuse->recomputed_tokens();
  Stopwatch watch;
  int32_t done = sequence.reuse->recompute_chunk(num_tokens);
  parts_.ops.device().synchronize();
  double seconds = watch.ms() * 1e-3;
  parts_.metrics.update([&](EngineMetrics& metrics) { metrics.compute_seconds += seconds; });
  // Translating E is no part of the prediction.
  if (done < kObservedRows || sequence.choice.is_translated()) return;
  double predicted =
      parts_.costs.compute_seconds(begin, done, sequence.choice.stored.recompute_work());
  parts_.costs.observe_compute(predicted, seconds);
}

// The store has forgotten what could not be loaded, so the next choice takes what is left: the
// blocks in front of it, or another cache.
void PromptReader::follow_failure(Sequence& sequence, size_t num_waiting) {
  if (!sequence.reuse) return;
  std::optional<LoadFailure> failure = sequence.reuse->failure();
  if (!failure) return;
  spdlog::warn("request {}: {}; the rest is computed", sequence.id, failure->text);
  bool has_stalled = failure->reason == LoadFailure::Reason::kStalled;
  const std::string reason = has_stalled ? "load_stalled" : "load_failed";
  const bool has_begun = sequence.num_generated() > 0;
  if (!has_begun) count_fallback(sequence, reason, failure->text);
  patience_.note_failure(sequence, *failure, std::chrono::steady_clock::now());
  const PrefillChoice before = sequence.choice;
  begin_with_the_rest(sequence, num_waiting);
  if (has_begun && !goes_on_as(before, sequence.choice))
    count_fallback(sequence, reason, failure->text);
}

void PromptReader::begin_with_the_rest(Sequence& sequence, size_t num_waiting) {
  sequence.pass.reset();
  sequence.writer.reset();
  if (has_more_on_device(sequence)) return keep_arrived(sequence);
  // What it has brought may lie in host memory by now, where the next load finds it.
  if (sequence.num_generated() == 0 && sequence.reuse->loaded_bytes() > 0)
    sequence.report.tier = slower_of(sequence.report.tier, sequence.reuse->slowest_tier());
  sequence.reuse.reset();
  sequence.num_computed = 0;
  if (sequence.choice.num_resident > 0) return keep_resident(sequence);
  sequence.blocks.clear();
  ++sequence.num_failed_loads;
  const char* has_room = "it has given back as many blocks as it takes";
  if (sequence.num_failed_loads < kMostFailedLoads)
    return check(start(sequence, num_waiting), has_room);
  sequence.choice = PrefillChoice{};
  if (sequence.num_generated() == 0) sequence.report.tier.clear();
  check(take_blocks(sequence), has_room);
  start_looking(parts_.ops, sequence);
  writer_.start(sequence);
}

// Whether more of the load has arrived than a new choice could take from memory; and where blocks
// are shared it could lack room for a new one.
bool PromptReader::has_more_on_device(const Sequence& sequence) const {
  size_t whole = sequence.reuse->whole_blocks();
  if (whole == 0) return false;
  size_t resident = sequence.choice.num_resident;
  return resident > 0 || parts_.chooser.num_in_memory(sequence.choice) < whole;
}

// What has arrived whole is the context, as if no more had been found; what follows is computed.
void PromptReader::keep_arrived(Sequence& sequence) {
  PrefillChoice& choice = sequence.choice;
  sequence.reuse->cut_to_whole_blocks();
  size_t whole = sequence.reuse->whole_blocks();
  choice.stored.cut(choice.num_resident + whole);
  sequence.num_computed = choice.num_tokens();
  std::erase_if(sequence.looked_at,
                [&](int32_t position) { return position >= choice.num_sender_tokens(); });
  start_looking(parts_.ops, sequence);
  writer_.start(sequence);
}

// Others may hold these blocks, so that a new choice could lack room; what follows them is
// computed.
void PromptReader::keep_resident(Sequence& sequence) {
  sequence.choice.stored.cut(sequence.choice.num_resident);
  start_reuse(sequence, nullptr);
  writer_.start(sequence);
}

void PromptReader::advance(Sequence& sequence, int32_t num_tokens) {
  if (sequence.reuse) finish_reuse(sequence);
  if (sequence.is_looking(Looking::Stage::kRead)) {
    sequence.looking->num_read += num_tokens;
    if (sequence.num_missing() == 0) finish_looking(sequence);
  } else if (!sequence.is_looking(Looking::Stage::kDraft)) {
    sequence.num_computed += num_tokens;
  }
}

// The scout has left the prompt as the plan's layers alone would read it, so it is stored like
// that; what is read from then on is the request's own.
void PromptReader::look_on(Sequence& sequence, const std::vector<SampledToken>& draft) {
  if (sequence.is_looking(Looking::Stage::kScout)) writer_.store_blocks(sequence);
  droidspeak::look_on(sequence, draft);
}

void PromptReader::finish_looking(Sequence& sequence) {
  sequence.num_computed = sequence.num_tokens();
  sequence.report.looked_at_tokens = static_cast<int32_t>(sequence.looked_at.size());
  parts_.metrics.update(
      [&](EngineMetrics& metrics) { metrics.looked_at_tokens += sequence.looked_at.size(); });
  sequence.looking.reset();
}

void PromptReader::finish_reuse(Sequence& sequence) {
  const ContextReuse& reuse = *sequence.reuse;
  const std::string tier(tier_name(reuse.slowest_tier()));
  if (sequence.num_generated() == 0) {
    sequence.report.load_ms = reuse.load_ms();
    sequence.report.tier = slower_of(sequence.report.tier, reuse.slowest_tier());
  }
  report_reuse(sequence);
  parts_.metrics.update([&](EngineMetrics& metrics) {
    ++metrics.hits_by_tier[tier];
    metrics.bytes_loaded += reuse.loaded_bytes();
    metrics.load_seconds += reuse.load_ms() * 1e-3;
  });
  // Of one that was cut, most of the time was waiting for what did not come.
  if (!reuse.is_cut())
    parts_.costs.observe_load(reuse.loaded_bytes(), reuse.slowest_tier(), reuse.load_ms() * 1e-3);
  sequence.reuse.reset();
}

void PromptReader::report_reuse(Sequence& sequence) {
  const PrefillChoice& choice = sequence.choice;
  PrefillReport later;  // of a run that goes on with an answer, whose reader has the first one's
  PrefillReport& report = sequence.num_generated() == 0 ? sequence.report : later;
  // What lies behind the sender's tokens runs again once some of these were looked at.
  bool is_looking = choice.stored.plan.look_permille > 0;
  report.cached_tokens = is_looking ? choice.num_sender_tokens() : choice.num_tokens();
  const int32_t from_sender = num_shared_tokens(sequence);
  const bool is_shared = from_sender > 0;
  int32_t recomputed = choice.stored.own_keys.empty() ? choice.stored.plan.recomputed_layers() : 0;
  if (is_shared) {
    report.sender = choice.sender ? choice.sender->name : sequence.variant->parent;
    report.plan =
        name_of_followed(choice.stored.plan, choice.is_translated(), parts_.kv.layout().num_layers);
    report.translated = choice.is_translated();
    report.reused_tokens = from_sender;
    report.recomputed_layers = recomputed;
  }
  parts_.metrics.update([&](EngineMetrics& metrics) {
    metrics.count(sequence.variant->name, [&](RequestCounters& counters) {
      counters.prefix_cache_hits += static_cast<uint64_t>(report.cached_tokens);
    });
    metrics.layers_recomputed += static_cast<uint64_t>(recomputed);
    bool are_loaded = metrics.variants.contains(report.sender) &&
                      metrics.variants.contains(sequence.variant->name);
    if (!is_shared || !are_loaded) return;
    PairCounters& pair = metrics.pairs[{report.sender, sequence.variant->name}];
    ++pair.hits;
    pair.tokens_reused += static_cast<uint64_t>(from_sender);
  });
}

// The first reason of a run is the one that counts. A reader who knows the report already hears of
// what is no longer so.
void PromptReader::count_fallback(Sequence& sequence,
                                  const std::string& reason,
                                  const std::string& text) {
  if (!sequence.report.fallback.empty()) return;
  sequence.report.fallback = text;
  sequence.report.fallback_reason = reason;
  sequence.report.fallback_after_tokens = sequence.num_generated();
  if (sequence.num_generated() > 0) sequence.stream->push(sequence.report);
  parts_.metrics.update([&](EngineMetrics& metrics) { ++metrics.fallbacks[reason]; });
}

}  // namespace droidspeak
