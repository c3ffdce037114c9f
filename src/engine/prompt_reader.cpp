#include "engine/prompt_reader.h"

#include <algorithm>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "base/check.h"
#include "base/clock.h"
#include "engine/batch.h"

namespace droidspeak {
namespace {

constexpr int kRestStalls = 10;  // as many times the stall limit a tier is left alone
// A link says sooner than a disk whether it is worth waiting for.
constexpr std::chrono::milliseconds kLinkStall{300};
constexpr std::chrono::milliseconds kLinkJudged{100};
// What links may cost a request that is computed in the end: with the time to ask
// (CacheStore::kAnswerLimit) less than half a second.
constexpr double kMostLostSeconds = 0.35;
// Over a link so much is loaded together, by its rate: what is whole is of use when the rest fails.
constexpr double kTogetherSeconds = 0.1;
// Maps that take longer to read, once, are left to later requests.
constexpr std::chrono::milliseconds kMapsPatience{2000};
constexpr int32_t kMostFailedLoads = 8;  // of one sequence, before it is computed
constexpr size_t kMostRefills = 4096;    // remembered

// Of the cache that the sequence has taken, how much is another variant's: the sender's, or the
// base's where an activated LoRA has found its own.
int32_t num_shared_tokens(const Sequence& sequence) {
  const PlanChoice& choice = sequence.choice;
  if (choice.sender) return choice.num_sender_tokens();
  if (!is_activated(*sequence.variant)) return 0;
  size_t num_blocks = std::min(choice.keys.size(), sequence.num_base_blocks());
  return static_cast<int32_t>(num_blocks) * kBlockTokens;
}

// Whether an answer that has begun with one goes on with the other to the same tokens.
bool goes_on_as(const PlanChoice& before, const PlanChoice& now) {
  const bool are_exact = before.is_exact() && now.is_exact();
  return are_exact || (before.provenance == now.provenance &&
                       before.num_sender_tokens() == now.num_sender_tokens());
}

// Leading blocks that a mixed choice takes from its sender.
size_t num_covered_blocks(const PlanChoice& choice) {
  return static_cast<size_t>(choice.num_sender_tokens() / kBlockTokens);
}

}  // namespace

void PromptReader::begin(Sequence& sequence, size_t num_waiting) {
  start(sequence, num_waiting);
  if (sequence.was_admitted) return;
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
}

void PromptReader::start(Sequence& sequence, size_t num_waiting) {
  choose(sequence, num_waiting);
  std::shared_ptr<const Translator> translator = read_maps(sequence, num_waiting);
  if (!sequence.choice.fallback.empty())
    count_fallback(sequence, sequence.choice.fallback_kind, sequence.choice.fallback);
  refill_inputs(sequence, num_waiting);
  take_blocks(sequence);
  if (!sequence.choice.keys.empty()) start_reuse(sequence, std::move(translator));
  start_looking(sequence);
  start_writer(sequence);
}

// A disk that hangs would cost every request the stall limit, and a thread each.
void PromptReader::choose(Sequence& sequence, size_t num_waiting) {
  sequence.choice = parts_.chooser.choose(sequence, num_waiting);
  TierSet resting = resting_tiers(sequence);
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

TierSet PromptReader::resting_tiers(const Sequence& sequence) const {
  TierSet resting;
  auto now = std::chrono::steady_clock::now();
  bool has_lost_enough = sequence.lost_load_seconds >= kMostLostSeconds;
  for (Tier tier : kAllTiers) {
    size_t i = index_of(tier);
    resting[i] = now < rests_until_[i] || (is_behind_link(tier) && has_lost_enough);
  }
  return resting;
}

std::chrono::milliseconds PromptReader::stall_of(Tier tier) const {
  return is_behind_link(tier) ? std::min(parts_.load_stall, kLinkStall) : parts_.load_stall;
}

LoadLimits PromptReader::limits_of(const Sequence& sequence) const {
  const PlanChoice& choice = sequence.choice;
  auto resident = static_cast<int32_t>(choice.num_resident) * kBlockTokens;
  bool is_sender = choice.source == PlanChoice::Source::kSender;
  double saved_layers = parts_.costs.num_layers() - (is_sender ? choice.plan.recompute_work() : 0);
  LoadLimits limits{.stall = parts_.load_stall, .judged_after = parts_.load_stall};
  limits.saved_seconds = [&costs = parts_.costs, resident, saved_layers](int32_t tokens) {
    return costs.compute_seconds(resident, tokens, saved_layers);
  };
  if (!is_behind_link(sequence.load_tier)) return limits;
  limits.stall = stall_of(sequence.load_tier);
  limits.judged_after = std::min(parts_.load_stall, kLinkJudged);
  limits.lost_seconds = sequence.lost_load_seconds;
  limits.most_lost_seconds = kMostLostSeconds;
  return limits;
}

size_t PromptReader::blocks_together(const PlanChoice& choice, Tier tier) const {
  if (!is_behind_link(tier)) return 0;
  std::optional<LinkCost> link = parts_.store->link_cost_of(tier);
  if (!link) return 1;
  double bytes = static_cast<double>(parts_.chooser.load_bytes(choice)) /
                 static_cast<double>(choice.keys.size() - choice.num_resident);
  auto blocks = static_cast<size_t>(kTogetherSeconds * link->bytes_per_second / bytes);
  return std::max<size_t>(blocks, 1);
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
  std::optional<PlanChoice> refill = parts_.chooser.refill_inputs(sequence, sequence.choice);
  if (!refill) return;
  if (refilled_.size() >= kMostRefills) refilled_.clear();
  if (refilled_.insert(sequence.choice.keys.back()).second) sequence.choice = std::move(*refill);
}

// What is on the device already is shared.
void PromptReader::take_blocks(Sequence& sequence) {
  BlockPool& pool = parts_.kv.pool();
  for (size_t i = 0; i < sequence.choice.num_resident; ++i) {
    std::optional<BlockLease> lease = pool.find(sequence.choice.keys[i]);
    check(lease.has_value(), "what the chooser has found is there");
    sequence.blocks.append(std::move(*lease));
  }
  check(sequence.blocks.reserve(pool, sequence.num_tokens()), "an admitted sequence fits");
}

void PromptReader::start_reuse(Sequence& sequence, std::shared_ptr<const Translator> translator) {
  sequence.num_computed = sequence.choice.num_tokens();
  if (sequence.choice.num_resident < sequence.choice.keys.size())
    return start_load(sequence, std::move(translator));
  if (sequence.num_generated() == 0) sequence.report.tier = "device";
  report_reuse(sequence);
  parts_.metrics.update([](EngineMetrics& metrics) { ++metrics.hits_by_tier["device"]; });
}

void PromptReader::start_load(Sequence& sequence, std::shared_ptr<const Translator> translator) {
  const PlanChoice& choice = sequence.choice;
  auto resident = static_cast<std::ptrdiff_t>(choice.num_resident);
  int32_t context = choice.num_tokens();
  bool is_mixed = choice.source == PlanChoice::Source::kOwnMixed;
  sequence.load_tier = parts_.chooser.tier_of(choice);
  std::span<const int32_t> blocks = sequence.blocks.blocks();
  StoredContext stored{
      .keys = is_mixed ? choice.sender_keys
                       : std::vector(choice.keys.begin() + resident, choice.keys.end()),
      .own_keys = is_mixed ? choice.keys : std::vector<Digest>(),
      .blocks = {blocks.begin() + resident, blocks.begin() + context / kBlockTokens},
      .blocks_together = blocks_together(choice, sequence.load_tier),
      .avoided = choice.avoided,
      .limits = limits_of(sequence),
      .on_progress = parts_.on_progress};
  ReuseJob job{.receiver = sequence.variant,
               .context = {sequence.tokens.begin() + resident * kBlockTokens,
                           sequence.tokens.begin() + context},
               .plan = choice.plan,
               .translator = std::move(translator),
               .stored = std::move(stored)};
  bool is_in_memory = sequence.load_tier == Tier::kHost;
  TransferThreads& threads = is_in_memory ? parts_.host_threads : parts_.slow_threads;
  sequence.reuse = std::make_unique<ContextReuse>(
      ContextReuse::Parts{parts_.ops, parts_.kv, parts_.store, threads}, std::move(job));
}

void PromptReader::start_looking(Sequence& sequence) {
  const PlanChoice& choice = sequence.choice;
  sequence.looking.reset();
  if (choice.plan.look_permille == 0) return sequence.looked_at.clear();
  sequence.looking = std::make_unique<Looking>();
  if (!sequence.looked_at.empty()) {
    start_reading(sequence);
  } else {
    sequence.looking->look =
        std::make_unique<Look>(parts_.ops, choice.num_sender_tokens(), choice.look_layer);
  }
}

void PromptReader::start_reading(Sequence& sequence) {
  Looking& looking = *sequence.looking;
  looking.look.reset();
  looking.stage = Looking::Stage::kRead;
  looking.positions = sequence.looked_at;
  // Blocks behind the context are the receiver's own, but were read on it as it was.
  for (int32_t i = sequence.choice.num_sender_tokens(); i < sequence.num_tokens(); ++i)
    looking.positions.push_back(i);
}

// What is read exactly is stored for everybody, with E where plan books want it (what an activated
// LoRA reads in front of its invocation for its base, and like it), and what is answered behind it,
// for the next turn of a conversation; what is mixed for its own
// variant and plan, without the layers that are the sender's. What came from the own cache is there
// already.
void PromptReader::start_writer(Sequence& sequence) {
  const PlanChoice& choice = sequence.choice;
  if (sequence.max_tokens < kBlockTokens || !parts_.adapters.is_current(*sequence.variant)) return;
  if (sequence.request.wants_embedding) return;            // nobody goes on from there
  if (sequence.is_looking(Looking::Stage::kRead)) return;  // nothing is as others could use it
  std::vector<int32_t> captured;
  const bool has_base_blocks = is_activated(*sequence.variant);
  const Variant base = without_adapter(*sequence.variant);
  if (choice.is_exact())
    captured = parts_.books.captured_layers(has_base_blocks ? base : *sequence.variant);
  size_t covered = num_covered_blocks(choice);
  sequence.stored_keys = choice.is_exact()
                             ? sequence.exact_keys
                             : parts_.chooser.mixed_keys(sequence, choice.provenance, covered);
  bool is_own = choice.source == PlanChoice::Source::kOwnExact ||
                choice.source == PlanChoice::Source::kOwnMixed;
  sequence.num_stored_blocks = is_own ? static_cast<int32_t>(choice.keys.size()) : 0;
  sequence.num_sent_blocks = sequence.num_stored_blocks;
  sequence.num_shared_blocks = choice.num_resident;  // they were found by their labels
  sequence.writer = std::make_unique<ContextWriter>(
      ContextWriter::Parts{parts_.ops, parts_.kv, *parts_.store, parts_.write_back,
                           cache_owner(*sequence.variant), parts_.on_progress},
      std::move(captured));
  if (has_base_blocks) {
    sequence.writer->lead_with(static_cast<int32_t>(sequence.num_base_blocks()), cache_owner(base));
  }
  if (choice.is_exact()) return;
  sequence.writer->keep_layers(static_cast<int32_t>(covered),
                               choice.plan.recomputed_layer_list(parts_.kv.layout().num_layers));
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
      parts_.costs.compute_seconds(begin, done, sequence.choice.plan.recompute_work());
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
  // A tier is not to blame for time that another one has lost before.
  Tier stalled = failure->tier != Tier::kHost ? failure->tier : sequence.load_tier;
  if (has_stalled && stalled != Tier::kHost && sequence.lost_load_seconds == 0) {
    rests_until_[index_of(stalled)] =
        std::chrono::steady_clock::now() + kRestStalls * stall_of(stalled);
  }
  if (is_behind_link(sequence.load_tier))
    sequence.lost_load_seconds += sequence.reuse->elapsed_seconds();
  const PlanChoice before = sequence.choice;
  begin_with_the_rest(sequence, num_waiting);
  if (has_begun && !goes_on_as(before, sequence.choice))
    count_fallback(sequence, reason, failure->text);
}

void PromptReader::begin_with_the_rest(Sequence& sequence, size_t num_waiting) {
  sequence.pass.reset();
  sequence.writer.reset();
  if (has_more_on_device(sequence)) return keep_arrived(sequence);
  sequence.reuse.reset();
  sequence.num_computed = 0;
  if (sequence.choice.num_resident > 0) return keep_resident(sequence);
  sequence.blocks.clear();
  ++sequence.num_failed_loads;
  if (sequence.num_failed_loads < kMostFailedLoads) return start(sequence, num_waiting);
  sequence.choice = PlanChoice{};
  take_blocks(sequence);
  start_looking(sequence);
  start_writer(sequence);
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
  PlanChoice& choice = sequence.choice;
  sequence.reuse->cut_to_whole_blocks();
  size_t whole = sequence.reuse->whole_blocks();
  choice.keys.resize(choice.num_resident + whole);
  choice.sender_keys.resize(std::min(choice.sender_keys.size(), whole));
  sequence.num_computed = choice.num_tokens();
  std::erase_if(sequence.looked_at,
                [&](int32_t position) { return position >= choice.num_sender_tokens(); });
  start_looking(sequence);
  start_writer(sequence);
}

// Others may hold these blocks, so that a new choice could lack room; what follows them is
// computed.
void PromptReader::keep_resident(Sequence& sequence) {
  sequence.choice.keys.resize(sequence.choice.num_resident);
  start_reuse(sequence, nullptr);
  start_writer(sequence);
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
  Looking& looking = *sequence.looking;
  check(looking.stage != Looking::Stage::kRead, "reading ends with the answer's token");
  if (looking.stage == Looking::Stage::kScout) {
    store_blocks(sequence);
    if (!draft.empty()) {
      looking.draft = draft.front().token;
      looking.stage = Looking::Stage::kDraft;
      return;
    }
  }
  int32_t context = sequence.choice.num_sender_tokens();
  sequence.looked_at = looking.look->choose(sequence.choice.plan.looked_at_tokens(context));
  start_reading(sequence);
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
    sequence.report.tier = tier;
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
  const PlanChoice& choice = sequence.choice;
  PrefillReport later;  // of a run that goes on with an answer, whose reader has the first one's
  PrefillReport& report = sequence.num_generated() == 0 ? sequence.report : later;
  // What lies behind the sender's tokens runs again once some of these were looked at.
  bool is_looking = choice.plan.look_permille > 0;
  report.cached_tokens = is_looking ? choice.num_sender_tokens() : choice.num_tokens();
  const int32_t from_sender = num_shared_tokens(sequence);
  const bool is_shared = from_sender > 0;
  int32_t recomputed =
      choice.source == PlanChoice::Source::kSender ? choice.plan.recomputed_layers() : 0;
  if (is_shared) {
    report.sender = choice.sender ? choice.sender->name : sequence.variant->parent;
    report.plan = choice.plan.to_string(parts_.kv.layout().num_layers);
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

void PromptReader::store_blocks(Sequence& sequence) {
  if (!sequence.writer || sequence.reuse) return;
  if (!parts_.adapters.is_current(*sequence.variant)) {
    if (!sequence.writer->has_copies()) sequence.writer.reset();
    return;
  }
  extend_keys(sequence);
  share_blocks(sequence);
  int32_t num_blocks = sequence.num_full_blocks();
  if (num_blocks > sequence.num_sent_blocks) {
    sequence.writer->store(sequence.stored_keys, sequence.blocks.blocks(), sequence.num_sent_blocks,
                           num_blocks * kBlockTokens);
    sequence.num_sent_blocks = num_blocks;
  }
  note_stored(sequence);
}

// The answer has filled another block.
void PromptReader::extend_keys(Sequence& sequence) {
  const PlanChoice& choice = sequence.choice;
  if (std::ssize(sequence.stored_keys) >= sequence.num_full_blocks()) return;
  if (choice.is_exact()) {
    sequence.exact_keys = parts_.chooser.exact_keys(sequence, *sequence.variant);
    sequence.stored_keys = sequence.exact_keys;
  } else {
    sequence.stored_keys =
        parts_.chooser.mixed_keys(sequence, choice.provenance, num_covered_blocks(choice));
  }
}

// Blocks with tokens that were, or will be, looked at are the request's own.
void PromptReader::share_blocks(Sequence& sequence) {
  if (sequence.looking || !sequence.looked_at.empty()) return;
  std::span<const int32_t> blocks = sequence.blocks.blocks();
  auto end = static_cast<size_t>(sequence.num_full_blocks());
  for (size_t& i = sequence.num_shared_blocks; i < end; ++i)
    parts_.kv.pool().label(blocks[i], sequence.stored_keys[i]);
}

void PromptReader::discard(Sequence& sequence) {
  if (sequence.writer) sequence.writer->wait();
  for (const std::vector<Digest>* keys : {&sequence.exact_keys, &sequence.stored_keys}) {
    parts_.store->erase(*keys);
    parts_.kv.pool().forget(*keys);
  }
}

void PromptReader::note_stored(Sequence& sequence) {
  if (!sequence.writer || sequence.writer->has_copies()) return;
  sequence.num_stored_blocks = sequence.num_sent_blocks;
  if (sequence.is_looking(Looking::Stage::kRead)) sequence.writer.reset();
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
