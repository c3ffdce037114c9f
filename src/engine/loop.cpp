#include "engine/loop.h"

#include <algorithm>
#include <set>
#include <string>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "base/check.h"
#include "engine/answer.h"
#include "sharing/coded_family.h"

namespace droidspeak {
namespace {

bool is_past_deadline(const Sequence& sequence) {
  const auto& deadline = sequence.request.deadline;
  return deadline && std::chrono::steady_clock::now() > *deadline;
}

// After the loads have been told to stop, one that is not in a hanging read ends within a moment.
constexpr std::chrono::milliseconds kLoadPatience{2000};

// The store together with its clock.
std::shared_ptr<CacheStore> make_store(StoreOptions options,
                                       const ModelFamily& family,
                                       const KvLayout& layout,
                                       size_t row_bytes) {
  struct ClockedStore {
    explicit ClockedStore(const StoreOptions& with) : store(with, clock) {}

    SteadyClock clock;
    CacheStore store;
  };

  options.kv_layout = layout;
  options.coded_model = coded_model_of(family, options);
  options.input_bytes = kBlockTokens * row_bytes;
  auto owner = std::make_shared<ClockedStore>(options);
  return {owner, &owner->store};
}

Error why_abandoned(const Sequence& sequence) {
  if (sequence.stream->is_cancelled()) return {ErrorCode::kCancelled, "cancelled by the reader"};
  return {ErrorCode::kCancelled, "deadline: the request was not finished in time"};
}

Error overflow_of(const Sequence& sequence) {
  return {
      ErrorCode::kInternal,
      fmt::format("model \"{}\": its logits after {} tokens are not finite numbers; its weights "
                  "are damaged, or too large for the precision in use",
                  sequence.variant->name, sequence.num_computed)};
}

// Why the answer cannot go on within its grammar.
Error misfit_of(const Sequence& sequence, const BatchRunner::Sample& sample) {
  if (!sample.is_stuck || sequence.matcher->is_too_slow())
    return {ErrorCode::kInvalidArgument, "the wanted format takes too long to follow"};
  return {ErrorCode::kInvalidArgument,
          fmt::format("after {} tokens of the answer no token of model \"{}\" fits the wanted "
                      "format",
                      sequence.num_generated(), sequence.variant->name)};
}

}  // namespace

Engine::Loop::Loop(Ops& ops, const FamilyFile& file, const EngineOptions& options)
    : ops_(ops),
      options_(options),
      family_(ops, file, options.family),
      kv_(ops.device(),
          family_.config().kv_layout(options.kv_dtype),
          kv_budget(ops.device(),
                    family_.config().kv_layout(options.kv_dtype),
                    family_.base()->transformer->max_positions(),
                    options.kv_bytes)),
      store_owner_(make_store(options.store,
                              family_,
                              kv_.layout(),
                              bytes_of(ops.activation_dtype(), family_.config().d_model))),
      store_(*store_owner_),
      books_(ops, family_.config(), file),
      costs_(options.fixed_costs ? *options.fixed_costs
                                 : calibrate(ops, *family_.base()->transformer, kv_),
             family_.config().num_layers,
             options.fixed_costs ? CostModel::Learning::kOff : CostModel::Learning::kOn),
      chooser_(family_,
               books_,
               store_,
               kv_.pool(),
               costs_,
               {.sharing = options.sharing,
                .ttft_slo_ms = options.ttft_slo_ms,
                .min_quality = options.min_quality,
                .layout = kv_.layout(),
                .input_dtype = ops.activation_dtype()}),
      num_blocks_(kv_.pool().num_blocks()),
      max_model_len_(static_cast<int32_t>(std::min<int64_t>(
          family_.base()->transformer->max_positions(), int64_t{num_blocks_} * kBlockTokens))),
      inbox_(options.max_queue),
      host_transfers_(kLoadPatience),
      slow_transfers_(kLoadPatience),
      write_back_(ops.device()),
      adapters_(family_, store_, kv_.pool(), options.max_adapters),
      loader_({.ops = ops,
               .base = family_.config(),
               .precision = options.family.precision,
               .registry = adapters_,
               .inbox = inbox_,
               .read = options.read_adapter,
               .patience = kLoadPatience}),
      scheduler_(kv_.pool(),
                 {options.chunk_tokens > 0 ? options.chunk_tokens : ops.prefill_rows(),
                  family_.config().num_layers}),
      runner_(ops, kv_),
      reading_once_(books_, chooser_, options.sharing),
      writer_({.ops = ops,
               .kv = kv_,
               .store = store_,
               .books = books_,
               .chooser = chooser_,
               .adapters = adapters_,
               .write_back = write_back_,
               .on_progress = [this] { inbox_.note_progress(); }}),
      reader_(
          {.ops = ops,
           .kv = kv_,
           .store = store_owner_,
           .chooser = chooser_,
           .writer = writer_,
           .costs = costs_,
           .metrics = metrics_,
           .host_threads = host_transfers_,
           .slow_threads = slow_transfers_,
           .on_progress = [this] { inbox_.note_progress(); },
           .load_stall = std::chrono::milliseconds(static_cast<int64_t>(options.load_stall_ms))}) {
  for (const std::string& reason : books_.unused(family_))
    spdlog::warn("a plan book is not used: {}", reason);
  follow_variants();
  publish();
  thread_ = std::thread([this] { run(); });
}

Engine::Loop::~Loop() {
  loader_.stop();
  inbox_.stop();
  thread_.join();
}

void Engine::Loop::run() {
  try {
    while (turn()) {
    }
    Error stopped{ErrorCode::kUnavailable, "the engine is shutting down"};
    end_all(stopped, stopped);
  } catch (const std::exception& exception) {
    spdlog::error("the engine has failed: {}", exception.what());
    is_healthy_ = false;
    std::string message = fmt::format("the engine has failed: {}", exception.what());
    // Nobody should try elsewhere what may have been the cause.
    end_all({ErrorCode::kUnavailable, message}, {ErrorCode::kInternal, message});
  }
}

bool Engine::Loop::turn() {
  release_stored();
  bool is_idle = line_.size() == 0 && scheduler_.num_running() == 0;
  Inbox::Wait wait = is_idle                 ? Inbox::Wait::kUntilMail
                     : is_waiting_for_loads_ ? Inbox::Wait::kForProgress
                                             : Inbox::Wait::kNo;
  Inbox::Mail mail = inbox_.take(wait);
  for (auto& sequence : mail.sequences) line_.push(std::move(sequence));
  if (mail.is_stopped) return false;
  for (Inbox::Command& command : mail.commands) command();
  // Loading an adapter may have met a broken device, which is not only the caller's concern.
  if (!mail.commands.empty()) {
    ops_.device().synchronize();
    follow_variants();
  }
  drop_abandoned();
  admit();
  publish();
  run_step();
  // Where others wait, some of them run next: between two steps nobody is missed.
  if (line_.size() == 0) publish();
  return true;
}

void Engine::Loop::follow_variants() {
  std::set<std::string> names;
  for (const auto& variant : family_.variants()) names.insert(variant->name);
  metrics_.update([&](EngineMetrics& metrics) { metrics.keep_variants(names); });
}

void Engine::Loop::drop_abandoned() {
  auto is_gone = [](const Sequence& sequence) {
    return sequence.stream->is_cancelled() || is_past_deadline(sequence);
  };
  size_t dropped = 0;
  for (auto& sequence : line_.remove_if(is_gone)) {
    abandon(*sequence, why_abandoned(*sequence), metrics_);
    ++dropped;
  }
  for (auto& sequence : scheduler_.remove_if(is_gone)) {
    abandon(*sequence, why_abandoned(*sequence), metrics_);
    ++dropped;
  }
  inbox_.note_done(dropped);
}

// When nobody runs there is time to wait, and the next request may want what is being stored.
void Engine::Loop::release_stored() {
  if (scheduler_.num_running() == 0) return leaving_.clear();
  std::erase_if(leaving_, [](const auto& sequence) { return !sequence->writer->has_copies(); });
}

void Engine::Loop::admit() {
  while (auto sequence = line_.take([this](Sequence& candidate) { return decide(candidate); })) {
    bool has_room = false;
    try {
      has_room = reader_.begin(*sequence, line_.size());
    } catch (...) {
      line_.push(std::move(sequence));  // it is told why, like everybody else
      throw;
    }
    if (!has_room) return line_.push_preempted(std::move(sequence));  // the next one to begin
    scheduler_.add(std::move(sequence));
  }
}

// Blocks that the sequence would share, and that others hold.
int32_t Engine::Loop::num_held_blocks(Sequence& sequence) {
  BlockPool& pool = kv_.pool();
  PrefillChoice choice = chooser_.choose(sequence, line_.size() - 1);
  const int32_t num_free = pool.num_free();
  std::vector<BlockLease> leases;
  for (size_t i = 0; i < choice.num_resident; ++i) {
    if (auto lease = pool.find(choice.stored.own_keys[i])) leases.push_back(std::move(*lease));
  }
  return static_cast<int32_t>(leases.size()) - (num_free - pool.num_free());
}

Admit Engine::Loop::decide(Sequence& sequence) {
  if (sequence.exact_keys.empty())
    sequence.exact_keys = chooser_.exact_keys(sequence, *sequence.variant);
  auto with_held = [&](int32_t num_blocks) {
    return decide_admission(sequence, kv_.pool(), scheduler_.num_running(),
                            {options_.max_batch_sequences, num_blocks});
  };
  Admit decision = with_held(0);
  bool might_fit = with_held(static_cast<int32_t>(sequence.num_shareable_blocks())) == Admit::kNow;
  if (decision != Admit::kNow && might_fit) decision = with_held(num_held_blocks(sequence));
  if (decision != Admit::kNow) return decision;
  bool should_wait =
      reading_once_.should_wait(sequence, scheduler_.running(), leaving_, line_.size() - 1);
  return should_wait ? Admit::kLater : decision;
}

void Engine::Loop::run_step() {
  for (const auto& sequence : scheduler_.running()) {
    writer_.note_stored(*sequence);
    reader_.follow_failure(*sequence, line_.size());
  }
  Step step = scheduler_.next_step();
  if (!step.preempted.empty()) {
    metrics_.update([&](EngineMetrics& metrics) { metrics.preemptions += step.preempted.size(); });
  }
  is_waiting_for_loads_ = step.is_empty() && scheduler_.num_running() > 0;
  for (auto& sequence : step.preempted) line_.push_preempted(std::move(sequence));
  for (const Step::Work& work : step.recomputes) reader_.recompute(*work.sequence, work.num_tokens);
  finished_.clear();
  for (const Batch& batch : build_batches(step.rows)) run_batch(batch);
  for (const Step::Work& work : step.follows) follow(work);
  auto done = scheduler_.remove_if([this](const Sequence& sequence) {
    return std::find(finished_.begin(), finished_.end(), &sequence) != finished_.end();
  });
  size_t num_done = done.size();
  for (auto& sequence : done) {
    if (sequence->writer && sequence->writer->has_copies()) leaving_.push_back(std::move(sequence));
  }
  if (options_.checks == EngineOptions::Checks::kEachStep) {
    done.clear();
    leaving_.clear();
    scheduler_.check_integrity();
    line_.check_integrity();
    store_.check_integrity();
    inbox_.note_done(num_done);
    return;
  }
  inbox_.note_done(num_done);
}

void Engine::Loop::run_batch(const Batch& batch) {
  double predicted = 0;
  for (const Step::Work& work : batch.work) {
    predicted +=
        costs_.compute_seconds(work.sequence->num_computed, work.num_tokens, costs_.num_layers());
  }
  Stopwatch watch;
  auto sampled = runner_.run(batch);
  ops_.device().synchronize();
  double seconds = watch.ms() * 1e-3;
  metrics_.update([&](EngineMetrics& metrics) { metrics.compute_seconds += seconds; });
  if (is_plain_prefill(batch)) costs_.observe_compute(predicted, seconds);
  settle(batch, std::move(sampled));
}

void Engine::Loop::follow(const Step::Work& work) {
  Batch batch = std::move(build_batches(std::span(&work, 1)).front());
  Stopwatch watch;
  auto sampled = runner_.follow(batch);
  ops_.device().synchronize();
  double seconds = watch.ms() * 1e-3;
  metrics_.update([&](EngineMetrics& metrics) { metrics.compute_seconds += seconds; });
  if (sampled) settle(batch, std::move(*sampled));
}

// The batch's rows have passed all layers.
void Engine::Loop::settle(const Batch& batch, BatchRunner::Sampled sampled) {
  for (size_t i = 0; i < batch.work.size(); ++i) {
    Sequence& sequence = *batch.work[i].sequence;
    bool is_complete = batch.is_complete(i);
    std::vector<SampledToken>& tokens = sampled[i].tokens;
    int32_t num_right = tokens.empty() ? 0 : static_cast<int32_t>(tokens.size()) - 1;
    reader_.advance(sequence, batch.work[i].num_tokens + num_right);
    judge_drafts(sequence, num_right);
    if (sampled[i].has_overflown) {
      spdlog::error("request {}: {}", sequence.id, overflow_of(sequence).message);
      writer_.discard(sequence);
      abandon(sequence, overflow_of(sequence), metrics_);
      finished_.push_back(&sequence);
    } else if (sampled[i].is_stuck || (sequence.matcher && sequence.matcher->is_too_slow())) {
      abandon(sequence, misfit_of(sequence, sampled[i]), metrics_);
      finished_.push_back(&sequence);
    } else if (sequence.looking) {
      if (is_complete) reader_.look_on(sequence, std::move(tokens));
    } else if (is_complete && answer(sequence, std::move(tokens), metrics_)) {
      finished_.push_back(&sequence);
    }
  }
  for (const Step::Work& work : batch.work) writer_.store_blocks(*work.sequence);
}

void Engine::Loop::judge_drafts(Sequence& sequence, int32_t num_right) {
  if (sequence.drafts.empty()) return;
  if (sequence.lookup) sequence.lookup->judge(static_cast<size_t>(num_right));
  metrics_.update([&](EngineMetrics& metrics) {
    metrics.drafted_tokens += sequence.drafts.size();
    metrics.accepted_tokens += static_cast<uint64_t>(num_right);
  });
  sequence.drafts.clear();
}

void Engine::Loop::publish() {
  inbox_.set_waiting(line_.size());
  BlockPool& pool = kv_.pool();
  double usage = 1 - static_cast<double>(pool.num_free()) / pool.num_blocks();
  metrics_.update([&](EngineMetrics& metrics) {
    metrics.running = scheduler_.num_running();
    metrics.waiting = static_cast<int32_t>(line_.size());
    metrics.kv_usage = usage;
  });
}

// Whoever sees a stream fail must already be refused when trying again.
void Engine::Loop::end_all(const Error& waiting, const Error& running) {
  inbox_.break_down(waiting);
  auto everyone = [](const Sequence&) { return true; };
  size_t ended = 0;
  for (auto& sequence : line_.remove_if(everyone)) {
    abandon(*sequence, waiting, metrics_);
    ++ended;
  }
  for (auto& sequence : scheduler_.remove_if(everyone)) {
    abandon(*sequence, running, metrics_);
    ++ended;
  }
  publish();
  inbox_.note_done(ended);
}

}  // namespace droidspeak
