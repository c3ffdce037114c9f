#include "engine/prompt_reader.h"

#include <algorithm>

#include <spdlog/spdlog.h>

#include "base/check.h"

namespace droidspeak {
namespace {

constexpr int kRestStalls = 10;  // as many times the stall limit the disk is left alone

}  // namespace

void PromptReader::begin(Sequence& sequence, size_t num_waiting) {
  check(sequence.blocks.reserve(parts_.kv.pool(), sequence.num_tokens()),
        "an admitted sequence fits");
  sequence.choice = parts_.chooser.choose(sequence, num_waiting);
  std::shared_ptr<const Translator> translator = read_maps(sequence, num_waiting);
  if (!sequence.choice.fallback.empty())
    count_fallback(sequence, sequence.choice.fallback_kind, sequence.choice.fallback);
  if (is_disk_avoided(sequence.choice)) {
    count_fallback(sequence, "disk_avoided", "a load from disk has stalled a moment ago");
    sequence.choice = PlanChoice{};
  }
  if (!sequence.was_admitted) {
    sequence.was_admitted = true;
    sequence.admitted = std::chrono::steady_clock::now();
    sequence.report.queue_ms = seconds_between(sequence.submitted, sequence.admitted) * 1e3;
    parts_.metrics.update([&](EngineMetrics& metrics) {
      metrics.queue_seconds.add(sequence.report.queue_ms * 1e-3);
      metrics.prompt_tokens += static_cast<uint64_t>(sequence.prompt_tokens);
      metrics.prefix_cache_queries += static_cast<uint64_t>(sequence.prompt_tokens);
    });
  }
  if (!sequence.choice.keys.empty()) start_reuse(sequence, std::move(translator));
  start_writer(sequence);
}

// Maps that turn out to be unusable are never offered again, so every new choice has fewer of them.
std::shared_ptr<const Translator> PromptReader::read_maps(Sequence& sequence, size_t num_waiting) {
  while (sequence.choice.maps != nullptr) {
    Result<std::shared_ptr<const Translator>> translator = sequence.choice.maps->get();
    if (translator) return *translator;
    std::string reason = translator.error().message;
    spdlog::error("maps of {} -> {} are not used: {}", sequence.choice.sender->name,
                  sequence.variant->name, reason);
    sequence.choice = parts_.chooser.choose(sequence, num_waiting);
    if (sequence.choice.fallback.empty()) count_fallback(sequence, "maps_unusable", reason);
  }
  return nullptr;
}

// A disk that hangs would cost every request the stall limit, and a thread each.
bool PromptReader::is_disk_avoided(const PlanChoice& choice) const {
  if (choice.keys.empty() || std::chrono::steady_clock::now() >= disk_rests_until_) return false;
  return parts_.store->tier_of(choice.keys) == Tier::kDisk ||
         parts_.store->tier_of(choice.sender_keys) == Tier::kDisk;
}

void PromptReader::start_reuse(Sequence& sequence, std::shared_ptr<const Translator> translator) {
  const PlanChoice& choice = sequence.choice;
  int32_t context = choice.num_tokens();
  bool is_mixed = choice.source == PlanChoice::Source::kOwnMixed;
  bool is_shared = is_mixed || choice.source == PlanChoice::Source::kSender;
  std::span<const int32_t> blocks = sequence.blocks.blocks();
  ReuseJob job{.receiver = sequence.variant,
               .context = {sequence.tokens.begin(), sequence.tokens.begin() + context},
               .sender_keys = is_mixed ? choice.sender_keys : choice.keys,
               .own_keys = is_mixed ? choice.keys : std::vector<Digest>(),
               .plan = is_shared ? choice.plan : ReusePlan::reuse_all(),
               .translator = std::move(translator),
               .blocks = {blocks.begin(), blocks.begin() + context / kBlockTokens},
               .limits = {parts_.load_stall,
                          parts_.costs.compute_seconds(0, context, parts_.costs.num_layers())},
               .on_progress = parts_.on_progress};
  sequence.reuse = std::make_unique<ContextReuse>(
      ContextReuse::Parts{parts_.ops, parts_.kv, parts_.store, parts_.threads}, std::move(job));
  sequence.num_computed = context;
}

// Exact prompts are stored for everybody, with E where plan books want it; mixed ones for their own
// variant and plan, without the layers that are the sender's. What came from the own cache is there
// already.
void PromptReader::start_writer(Sequence& sequence) {
  const PlanChoice& choice = sequence.choice;
  if (sequence.prompt_tokens < kBlockTokens || !parts_.adapters.is_current(*sequence.variant))
    return;
  std::vector<int32_t> captured;
  if (choice.is_exact()) captured = parts_.library.captured_layers(*sequence.variant);
  bool is_from_sender = choice.source == PlanChoice::Source::kSender;
  size_t covered = is_from_sender ? choice.keys.size() : choice.sender_keys.size();
  sequence.stored_keys = choice.is_exact()
                             ? sequence.exact_keys
                             : parts_.chooser.mixed_keys(sequence, choice.provenance, covered);
  bool is_own = choice.source == PlanChoice::Source::kOwnExact ||
                choice.source == PlanChoice::Source::kOwnMixed;
  sequence.num_stored_blocks = is_own ? static_cast<int32_t>(choice.keys.size()) : 0;
  sequence.num_sent_blocks = sequence.num_stored_blocks;
  sequence.writer = std::make_unique<ContextWriter>(
      ContextWriter::Parts{parts_.ops, parts_.kv, *parts_.store, parts_.write_back,
                           cache_owner(*sequence.variant)},
      std::move(captured));
  if (choice.is_exact()) return;
  sequence.writer->keep_layers(static_cast<int32_t>(covered),
                               choice.plan.recomputed_layer_list(parts_.kv.layout().num_layers));
}

void PromptReader::recompute(Sequence& sequence, int32_t num_tokens) {
  sequence.reuse->recompute_chunk(num_tokens);
}

bool PromptReader::falls_back(Sequence& sequence) {
  if (!sequence.reuse) return false;
  std::optional<LoadFailure> failure = sequence.reuse->failure();
  if (!failure) return false;
  spdlog::warn("request {}: {}; the whole prompt is computed", sequence.id, failure->text);
  bool has_stalled = failure->reason == LoadFailure::Reason::kStalled;
  count_fallback(sequence, has_stalled ? "load_stalled" : "load_failed", failure->text);
  if (has_stalled)
    disk_rests_until_ = std::chrono::steady_clock::now() + kRestStalls * parts_.load_stall;
  sequence.reuse.reset();
  sequence.pass.reset();
  sequence.writer.reset();
  sequence.num_computed = 0;
  sequence.choice = PlanChoice{};
  start_writer(sequence);
  return true;
}

void PromptReader::advance(Sequence& sequence, int32_t num_tokens) {
  if (sequence.reuse) finish_reuse(sequence);
  sequence.num_computed += num_tokens;
}

void PromptReader::finish_reuse(Sequence& sequence) {
  const PlanChoice& choice = sequence.choice;
  const ContextReuse& reuse = *sequence.reuse;
  PrefillReport& report = sequence.report;
  report.cached_tokens = choice.num_tokens();
  report.load_ms = reuse.load_ms();
  bool is_shared = choice.sender != nullptr;
  int32_t recomputed =
      choice.source == PlanChoice::Source::kSender ? choice.plan.recomputed_layers() : 0;
  if (is_shared) {
    report.sender = choice.sender->name;
    report.plan = choice.plan.to_string(parts_.kv.layout().num_layers);
    report.translated = choice.is_translated();
    report.reused_tokens = choice.num_sender_tokens();
    report.recomputed_layers = recomputed;
  }
  parts_.metrics.update([&](EngineMetrics& metrics) {
    auto tokens = static_cast<uint64_t>(choice.num_tokens());
    metrics.prefix_cache_hits += tokens;
    ++metrics.hits_by_tier[reuse.slowest_tier() == Tier::kHost ? "host" : "disk"];
    metrics.layers_recomputed += static_cast<uint64_t>(recomputed);
    metrics.bytes_loaded += reuse.loaded_bytes();
    metrics.load_seconds += reuse.load_ms() * 1e-3;
    metrics.compute_seconds += reuse.recompute_ms() * 1e-3;
    if (!is_shared) return;
    PairCounters& pair = metrics.pairs[{choice.sender->name, sequence.variant->name}];
    ++pair.hits;
    pair.tokens_reused += static_cast<uint64_t>(choice.num_sender_tokens());
  });
  parts_.costs.observe_load(reuse.loaded_bytes(), reuse.slowest_tier(), reuse.load_ms() * 1e-3);
  sequence.reuse.reset();
}

void PromptReader::store_blocks(Sequence& sequence) {
  if (!sequence.writer || sequence.reuse) return;
  int32_t num_tokens = std::min(sequence.num_computed, sequence.prompt_tokens);
  int32_t num_blocks = num_tokens / kBlockTokens;
  if (num_blocks > sequence.num_sent_blocks && parts_.adapters.is_current(*sequence.variant)) {
    sequence.writer->store(sequence.stored_keys, sequence.blocks.blocks(), sequence.num_sent_blocks,
                           num_tokens);
    sequence.num_sent_blocks = num_blocks;
  }
  note_stored(sequence);
}

void PromptReader::note_stored(Sequence& sequence) {
  if (!sequence.writer || sequence.writer->has_copies()) return;
  sequence.num_stored_blocks = sequence.num_sent_blocks;
  if (!sequence.reuse && sequence.num_computed >= sequence.prompt_tokens) sequence.writer.reset();
}

void PromptReader::count_fallback(Sequence& sequence,
                                  const std::string& reason,
                                  const std::string& text) {
  if (sequence.report.fallback.empty()) sequence.report.fallback = text;
  parts_.metrics.update([&](EngineMetrics& metrics) { ++metrics.fallbacks[reason]; });
}

}  // namespace droidspeak
