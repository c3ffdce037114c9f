#include "sharing/prompt_runner.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/size.h"
#include "model/activation.h"
#include "sharing/context_writer.h"
#include "sharing/look.h"

namespace droidspeak {
namespace {

// Of a chunk's rows, of which the last `wanted` are among the `wanted_in_all`. A single one that is
// wanted alone is summed in another order than one among others, so one of several takes the row
// before it along.
int32_t output_rows(int32_t rows, int32_t wanted, int32_t wanted_in_all) {
  if (wanted_in_all > 1 && wanted == 1 && rows > 1) return 2;
  if (wanted_in_all > 1 && wanted >= rows) return BatchSlice::kAllRows;
  return std::max(0, wanted);
}

}  // namespace

PromptRunner::PromptRunner(Ops& ops, KvCache& kv, CacheStore& store, int32_t chunk_tokens)
    : ops_(ops),
      kv_(kv),
      store_(store),
      write_back_(ops.device()),
      chunk_tokens_(chunk_tokens > 0 ? chunk_tokens : ops.prefill_rows()) {}

std::vector<Digest> PromptRunner::keys_of(const Variant& variant,
                                          std::span<const int32_t> tokens,
                                          const std::string& salt) const {
  CacheIdentity identity = exact_identity(variant, salt, kv_.layout(), ops_.activation_dtype());
  identity.active_from = activation_in(variant.adapter.get(), tokens);
  identity.formats = store_.formats();
  return block_keys(identity, tokens);
}

PromptTimings PromptRunner::partial_prefill(std::span<const int32_t> tokens,
                                            const PromptJob& job,
                                            BlockTable& table,
                                            const Visit& visit) {
  check(!tokens.empty(), "a prompt has at least one token");
  if (!table.reserve(kv_.pool(), static_cast<int32_t>(tokens.size()))) {
    throw Failure(ErrorCode::kExhausted,
                  fmt::format("prompt of {} tokens: K/V memory has room for {} (raise --kv-memory)",
                              tokens.size(), kv_.pool().num_free() * kBlockTokens));
  }
  PromptTimings timings;
  Stopwatch watch;
  // At least one token is always computed, and what an activated LoRA applies to.
  int32_t shared = std::min(job.context_tokens, static_cast<int32_t>(tokens.size()) - 1);
  if (is_activated(*job.receiver))
    shared = std::min(shared, activation_in(job.receiver->adapter.get(), tokens));
  shared = shared / kBlockTokens * kBlockTokens;
  if (job.sender == nullptr || job.plan.is_full(kv_.layout().num_layers)) shared = 0;
  if (shared > 0) {
    // Not owned: transfers_ waits for its loads, however long.
    std::shared_ptr<CacheStore> store(std::shared_ptr<void>(), &store_);
    ContextReuse reuse({ops_, kv_, std::move(store), transfers_},
                       reuse_job(tokens.first(static_cast<size_t>(shared)), job, table));
    while (!reuse.is_recomputed() && !reuse.failure()) {
      if (reuse.recompute_chunk(chunk_tokens_) == 0) reuse.wait_for_progress();
    }
    timings.recompute_ms = watch.ms();
    bool is_done = reuse.is_recomputed();
    if (is_done && job.plan.look_permille > 0) {
      size_t end = job.answer_begin > 0 ? static_cast<size_t>(job.answer_begin) : tokens.size();
      std::optional<std::vector<int32_t>> looked_at =
          look(tokens.first(end), shared, job, table, reuse);
      timings.look_ms = watch.ms() - timings.recompute_ms;
      is_done = looked_at.has_value();
      if (is_done) {
        timings.looked_at_tokens = static_cast<int32_t>(looked_at->size());
        read(tokens, *std::move(looked_at), shared, job, table, visit);
      }
    } else if (is_done) {
      is_done = forward_rows(tokens, shared, job, table, &reuse, visit);
    }
    timings.load_ms = reuse.load_ms();
    timings.load_times = reuse.load_times();
    timings.tier = reuse.slowest_tier();
    if (!is_done) {
      timings.fallback = reuse.failure().value_or(LoadFailure{}).text;
      timings.looked_at_tokens = 0;
      shared = 0;
    }
  }
  if (shared == 0) forward_rows(tokens, 0, job, table, nullptr, visit);
  ops_.device().synchronize();
  timings.prefill_ms = watch.ms();
  timings.suffix_ms = timings.prefill_ms - timings.recompute_ms - timings.look_ms;
  timings.reused_tokens = shared;
  return timings;
}

ReuseJob PromptRunner::reuse_job(std::span<const int32_t> context,
                                 const PromptJob& job,
                                 const BlockTable& table) const {
  return {.receiver = job.receiver,
          .context = {context.begin(), context.end()},
          .translator = job.translator,
          .load = {.stored = {.plan = job.plan, .sender_keys = keys_of(*job.sender, context)},
                   .blocks = {table.blocks().begin(), table.blocks().end()}}};
}

bool PromptRunner::forward_rows(std::span<const int32_t> tokens,
                                int32_t begin,
                                const PromptJob& job,
                                const BlockTable& table,
                                ContextReuse* reuse,
                                const Visit& visit,
                                const AttentionMass* mass) {
  Transformer& transformer = *job.receiver->transformer;
  auto total = static_cast<int32_t>(tokens.size());
  const int32_t num_layers = transformer.config().num_layers;
  const int32_t active_from = activation_in(job.receiver->adapter.get(), tokens);
  for (int32_t first = begin; first < total; first += chunk_tokens_) {
    int32_t rows = std::min(chunk_tokens_, total - first);
    TensorView hidden =
        hidden_.reshape(ops_.device(), ops_.activation_dtype(), rows, transformer.config().d_model);
    transformer.embed(tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(rows)),
                      hidden);
    BatchSlice slice{{0, rows, first, table.blocks(), {}, total}, job.receiver->adapter.get()};
    const int32_t first_output = std::min(job.first_output, total - 1);
    slice.output_rows = output_rows(rows, first + rows - first_output, total - first_output);
    slice.activate_from(active_from);
    if (first + rows == total) slice.mass = mass;
    for (int32_t layer = 0; layer < num_layers; ++layer) {
      if (reuse != nullptr && !reuse->wait_layer(layer)) return false;
      transformer.forward_layers({layer, layer + 1}, std::span(&slice, 1), kv_, hidden);
    }
    visit(first, hidden);
  }
  return true;
}

std::optional<std::vector<int32_t>> PromptRunner::look(std::span<const int32_t> prompt,
                                                       int32_t context_tokens,
                                                       const PromptJob& job,
                                                       BlockTable& table,
                                                       ContextReuse& reuse) {
  Transformer& transformer = *job.receiver->transformer;
  const auto end = static_cast<int32_t>(prompt.size());
  check(end > context_tokens, "a prompt goes on behind its context");
  Look look(ops_, context_tokens, job.look_layer);
  int32_t draft = 0;
  PromptJob scout = job;
  scout.first_output = PromptJob::kLastToken;
  auto choose_draft = [&](int32_t first, TensorView hidden) {
    if (first + hidden.rows < end) return;
    TensorView logits =
        logits_.reshape(ops_.device(), DType::kF32, 1, transformer.config().vocab_size);
    transformer.logits(hidden.row_range(hidden.rows - 1, hidden.rows), logits);
    greedy_tokens(ops_, logits, std::span(&draft, 1));
  };
  if (!forward_rows(prompt, context_tokens, scout, table, &reuse, choose_draft, &look.mass()))
    return std::nullopt;
  // At the very end of the positions, or of K/V memory, there is no place for a draft.
  if (end < transformer.max_positions() && table.reserve(kv_.pool(), end + 1)) {
    std::vector<int32_t> tokens(prompt.begin(), prompt.end());
    tokens.push_back(draft);
    const Adapter* adapter = job.receiver->adapter.get();
    BatchSlice slice{{0, 1, end, table.blocks()}, adapter, 1, &look.mass()};
    slice.activate_from(activation_in(adapter, tokens));
    forward_one(*job.receiver, draft, slice);
  }
  return look.choose(job.plan.looked_at_tokens(context_tokens));
}

void PromptRunner::read(std::span<const int32_t> tokens,
                        std::vector<int32_t> positions,
                        int32_t context_tokens,
                        const PromptJob& job,
                        const BlockTable& table,
                        const Visit& visit) {
  Transformer& transformer = *job.receiver->transformer;
  const auto total = static_cast<int32_t>(tokens.size());
  const int32_t first_output = std::min(job.first_output, total - 1);
  for (int32_t i = context_tokens; i < total; ++i) positions.push_back(i);
  std::span<const int32_t> left = positions;
  while (!left.empty()) {
    std::span<const int32_t> some =
        left.first(std::min(left.size(), static_cast<size_t>(chunk_tokens_)));
    left = left.subspan(some.size());
    std::vector<int32_t> chunk;
    for (int32_t position : some) chunk.push_back(tokens[static_cast<size_t>(position)]);
    TensorView hidden = hidden_.reshape(ops_.device(), ops_.activation_dtype(), std::ssize(chunk),
                                        transformer.config().d_model);
    transformer.embed(chunk, hidden);
    auto from = [&](int32_t position) {
      return std::ranges::lower_bound(some, position) - some.begin();
    };
    BatchSlice slice{{0, static_cast<int32_t>(some.size()), 0, table.blocks(), some, total},
                     job.receiver->adapter.get()};
    slice.output_rows = output_rows(slice.sequence.num_rows,
                                    static_cast<int32_t>(std::ssize(some) - from(first_output)),
                                    total - first_output);
    slice.activate_from(activation_in(job.receiver->adapter.get(), tokens));
    transformer.forward_layers({0, transformer.config().num_layers}, std::span(&slice, 1), kv_,
                               hidden);
    const auto behind = from(context_tokens);
    if (behind < std::ssize(some))
      visit(some[static_cast<size_t>(behind)], hidden.row_range(behind, hidden.rows));
  }
}

TensorView PromptRunner::decode(const Variant& variant,
                                int32_t token,
                                int32_t position,
                                BlockTable& table) {
  if (!table.reserve(kv_.pool(), position + 1)) {
    throw Failure(ErrorCode::kExhausted,
                  fmt::format("K/V memory is full at {} tokens (raise --kv-memory)", position));
  }
  return forward_one(variant, token, {{0, 1, position, table.blocks()}, variant.adapter.get()});
}

TensorView PromptRunner::forward_one(const Variant& variant,
                                     int32_t token,
                                     const BatchSlice& slice) {
  Transformer& transformer = *variant.transformer;
  TensorView hidden =
      hidden_.reshape(ops_.device(), ops_.activation_dtype(), 1, transformer.config().d_model);
  transformer.embed(std::span(&token, 1), hidden);
  transformer.forward_layers({0, transformer.config().num_layers}, std::span(&slice, 1), kv_,
                             hidden);
  return hidden;
}

double PromptRunner::ensure_cached(const Variant& variant,
                                   std::span<const int32_t> tokens,
                                   const std::vector<int32_t>& layers,
                                   const std::string& salt) {
  tokens = tokens.first(tokens.size() / kBlockTokens * kBlockTokens);
  std::vector<Digest> keys = keys_of(variant, tokens, salt);
  std::vector<EntryId> wanted;
  for (int32_t layer = 0; layer < kv_.layout().num_layers; ++layer)
    wanted.push_back({EntryKind::kKeyValue, layer});
  for (int32_t layer : layers) wanted.push_back({EntryKind::kLayerInput, layer});
  store_.ask(keys, wanted);
  store_.wait_for_answers(keys, wanted,
                          std::chrono::steady_clock::now() + CacheStore::kAnswerLimit);
  if (keys.empty() || store_.longest_prefix(keys, wanted) == keys.size()) return 0;

  Stopwatch watch;
  BlockTable table;
  auto total = static_cast<int32_t>(tokens.size());
  if (!table.reserve(kv_.pool(), total)) {
    throw Failure(
        ErrorCode::kExhausted,
        fmt::format("context of {} tokens does not fit into the K/V memory (raise --kv-memory)",
                    total));
  }
  ContextWriter writer({ops_, kv_, store_, write_back_, cache_owner(variant)}, layers);
  const int32_t active_from = activation_in(variant.adapter.get(), tokens);
  if (is_activated(variant))
    writer.lead_with(active_from / kBlockTokens, cache_owner(without_adapter(variant)));
  Transformer& transformer = *variant.transformer;
  int32_t num_layers = transformer.config().num_layers;
  for (int32_t first = 0; first < total; first += chunk_tokens_) {
    int32_t rows = std::min(chunk_tokens_, total - first);
    TensorView hidden =
        hidden_.reshape(ops_.device(), ops_.activation_dtype(), rows, transformer.config().d_model);
    transformer.embed(tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(rows)),
                      hidden);
    BatchSlice slice{{0, rows, first, table.blocks(), {}, total}, variant.adapter.get(), 0};
    slice.activate_from(active_from);
    int32_t done = 0;
    for (int32_t layer : writer.captured_layers()) {
      transformer.forward_layers({done, layer}, std::span(&slice, 1), kv_, hidden);
      writer.capture(layer, first, hidden);
      done = layer;
    }
    transformer.forward_layers({done, num_layers}, std::span(&slice, 1), kv_, hidden);
  }
  writer.store(keys, table.blocks(), 0, total);
  writer.wait();
  return watch.ms();
}

void greedy_tokens(Ops& ops, TensorView logits, std::span<int32_t> tokens) {
  ops.argmax(logits, tokens);
  if (std::ranges::find(tokens, -1) == tokens.end()) return;
  throw Failure(ErrorCode::kDataCorrupt,
                "the model's logits are not finite numbers: its weights are damaged, or too large "
                "for the precision in use");
}

}  // namespace droidspeak
