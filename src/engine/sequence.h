// One request on its way through the engine. Its tokens are the prompt and what was generated so
// far; positions [0, num_computed) have their K/V in the blocks, and whenever num_computed reaches
// the end the next token is sampled. One that looks at tokens of its context drafts instead, and
// samples when Looking::positions have run. Losing the blocks (preemption) therefore needs no state
// of its own: num_computed becomes 0 and all tokens so far are read again, an answer row by row.
//
//   tokens        [ reused context | rest of the prompt | generated ]
//   num_computed  ^ at first       ^ once reuse is done             ^ sample
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/embedding_pool.h"
#include "engine/looking.h"
#include "engine/prefill_choice.h"
#include "engine/prompt_lookup.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "grammar/grammar_matcher.h"
#include "kv/kv_cache.h"
#include "model/activation.h"
#include "sharing/context_reuse.h"
#include "sharing/context_writer.h"

namespace droidspeak {

using TimePoint = std::chrono::steady_clock::time_point;

inline double seconds_between(TimePoint begin, TimePoint end) {
  return std::chrono::duration<double>(end - begin).count();
}

struct SequenceOptions {
  GenerationRequest request;
  std::shared_ptr<const Variant> variant = nullptr;
  int32_t vocab_size = 0;
  int32_t max_tokens = 0;  // prompt and output together
  Speculation speculation = Speculation::kNone;
  TimePoint now = {};
};

// Rows behind a reused context on their way through the layers: the pass stops where a layer is not
// loaded yet and goes on later.
struct LayerPass {
  Tensor hidden;
  int32_t num_tokens = 0;
  int32_t next_layer = 0;
};

// Keys of a prompt's full blocks as a variant computes them.
struct WriterKeys {
  std::shared_ptr<const Variant> writer;
  std::vector<Digest> keys;
};

struct Sequence {
  explicit Sequence(SequenceOptions options)
      : request(std::move(options.request)),
        stream(std::make_shared<TokenStream>()),
        variant(std::move(options.variant)),
        tokens(*request.prompt),
        prompt_tokens(static_cast<int32_t>(tokens.size())),
        active_from(variant ? activation_in(variant->adapter.get(), tokens) : 0),
        max_tokens(options.max_tokens),
        sampler(request.sampling, tokens, options.vocab_size),
        drafts_forced_text(options.speculation != Speculation::kNone),
        submitted(options.now) {
    request.prompt = {};  // it is in `tokens`
    if (request.grammar) matcher.emplace(request.grammar);
    const bool is_free = !request.grammar && request.min_tokens == 0;
    if (is_free && options.speculation == Speculation::kLookup)
      lookup = std::make_unique<PromptLookup>();
    if (request.min_tokens == 0) return;
    no_stops.assign(static_cast<size_t>((options.vocab_size + 31) / 32), ~uint32_t{0});
    for (int32_t token : *request.stop_tokens) {
      if (token < 0 || token >= options.vocab_size) continue;
      no_stops[static_cast<size_t>(token) / 32] &= ~(uint32_t{1} << (token % 32));
    }
  }

  uint64_t id = 0;  // order of arrival; kept through preemption
  GenerationRequest request;
  std::shared_ptr<TokenStream> stream;     // shared with the reader
  std::shared_ptr<const Variant> variant;  // kept alive through replacement of its name
  std::vector<int32_t> tokens;
  int32_t prompt_tokens;
  int32_t active_from;  // the adapter applies from this position on
  int32_t max_tokens;
  Sampler sampler;
  std::optional<GrammarMatcher> matcher;  // where the answer is in its grammar
  std::vector<uint32_t> no_stops;         // one bit per token, for the first `min_tokens`

  bool drafts_forced_text;
  std::unique_ptr<PromptLookup> lookup;  // null: nothing is drafted of what is not forced
  std::vector<int32_t> drafts;           // rows of this step behind the next token's

  BlockTable blocks;
  int32_t num_computed = 0;

  std::vector<Digest> exact_keys;       // of the full blocks as the variant itself computes them
  std::vector<WriterKeys> writer_keys;  // of the senders that were asked about so far
  PrefillChoice choice;
  std::unique_ptr<ContextReuse> reuse;  // until the context's K/V is complete
  std::unique_ptr<LayerPass> pass;      // null: none is under way
  std::unique_ptr<Looking> looking;     // null: nothing is looked at, or everything was read
  // Positions in the context that are read, once they are chosen. Kept through preemption: where
  // answers depend on the batch, another scout might choose others.
  std::vector<int32_t> looked_at;
  std::unique_ptr<ContextWriter> writer;  // null: nothing of this prompt is (still) to be stored
  std::vector<Digest> stored_keys;        // under which the writer writes the full blocks
  size_t num_shared_blocks = 0;           // labelled in the pool, so that others can share them
  int32_t num_sent_blocks = 0;            // given to the writer
  int32_t num_stored_blocks = 0;          // of those, in the store
  uint64_t waits_for = 0;                 // id of the sequence that reads for both; 0: of none
  int32_t num_failed_loads = 0;
  double lost_load_seconds = 0;  // that those over links have taken
  Tier load_tier = Tier::kHost;  // the slowest that `reuse` loads from

  PrefillReport report;
  PromptLogprobs prompt_logprobs;
  EmbeddingPool embedding;
  TimePoint submitted;
  TimePoint admitted = {};
  TimePoint last_token = {};
  bool was_admitted = false;

  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }

  int32_t num_generated() const { return num_tokens() - prompt_tokens; }

  // Whether not every token may come next.
  bool is_restricted() const { return matcher || num_generated() < request.min_tokens; }

  // One bit per token that may come next; empty: every token may.
  std::span<const uint32_t> allowed_tokens() {
    if (matcher) return matcher->mask();
    return is_restricted() ? std::span<const uint32_t>(no_stops) : std::span<const uint32_t>();
  }

  // What may come next, `most` tokens: what must come by the grammar, or what the prompt has.
  std::vector<int32_t> next_drafts(int32_t most) {
    if (looking || most <= 0) return {};
    if (lookup) return lookup->draft(tokens, most);
    if (!matcher || !drafts_forced_text) return {};
    std::vector<int32_t> forced = matcher->forced_tokens();
    if (std::ssize(forced) > most) forced.resize(static_cast<size_t>(most));
    return forced;
  }

  // Whose tokens are known and computed: behind an answer's end there may be rows of drafts.
  int32_t num_full_blocks() const { return std::min(num_computed, num_tokens()) / kBlockTokens; }

  // Whether something is wanted of every row, so that caches are of no use.
  bool reads_every_row() const { return request.wants_prompt_logprobs || request.wants_embedding; }

  // Whether the final state of every row is a result.
  bool wants_every_state() const {
    bool is_pooled = request.wants_embedding && variant->pooling == Pooling::kMean;
    return request.wants_prompt_logprobs || is_pooled;
  }

  // At least the last token of the prompt is always computed.
  size_t num_shareable_blocks() const {
    return static_cast<size_t>((prompt_tokens - 1) / kBlockTokens);
  }

  // Leading blocks of the prompt that an activated LoRA leaves to its base.
  size_t num_base_blocks() const {
    return static_cast<size_t>(std::min(active_from, prompt_tokens) / kBlockTokens);
  }

  bool is_looking(Looking::Stage stage) const { return looking && looking->stage == stage; }

  // Who of one tenant's is admitted first.
  bool goes_before(const Sequence& other) const {
    return std::pair(request.priority, id) < std::pair(other.request.priority, other.id);
  }

  // Rows that run before the next thing is decided.
  int32_t num_missing() const {
    if (is_looking(Looking::Stage::kScout)) return prompt_tokens - num_computed;
    if (is_looking(Looking::Stage::kDraft)) return 1;
    if (is_looking(Looking::Stage::kRead))
      return static_cast<int32_t>(looking->positions.size()) - looking->num_read;
    return num_tokens() - num_computed;
  }

  // One row that may need another block.
  bool is_decoding() const {
    if (looking) return is_looking(Looking::Stage::kDraft);
    return !reuse && num_generated() > 0 && num_missing() == 1;
  }

  // Positions that need room in the blocks.
  int32_t num_positions() const {
    return num_tokens() + (is_looking(Looking::Stage::kDraft) ? 1 : 0);
  }

  // What the sequence can do next; kLoad: nothing until more has arrived, or has been stored,
  // kFollow: `pass` can go on.
  enum class Next { kRows, kRecompute, kFollow, kLoad };

  Next next() const {
    // What is read would replace what is still being copied into the store. The writer leaves once
    // nothing is: what follows is the request's own.
    if (is_looking(Looking::Stage::kRead) && writer) return Next::kLoad;
    if (!reuse) return Next::kRows;
    if (!reuse->is_recomputed())
      return reuse->recomputable_tokens() > 0 ? Next::kRecompute : Next::kLoad;
    if (pass) return reuse->is_layer_ready(pass->next_layer) ? Next::kFollow : Next::kLoad;
    return reuse->is_loaded() ? Next::kRows : Next::kLoad;
  }

  // Whether a pass could begin before everything is loaded.
  bool can_follow() const {
    return reuse && !pass && reuse->is_recomputed() && reuse->is_layer_ready(0);
  }

  // The report is that of the run that gives the answer: once it was given it stays, and so does
  // where the answer went on otherwise.
  void restart_report() {
    if (num_generated() > 0) {
      if (report.fallback_after_tokens == 0) report.fallback.clear();
      return;
    }
    PrefillReport fresh;
    fresh.queue_ms = report.queue_ms;
    report = std::move(fresh);
  }

  // Gives up the blocks and everything computed.
  void release_blocks() {
    restart_report();
    reuse.reset();  // stops writing into the blocks
    pass.reset();
    looking.reset();
    writer.reset();
    drafts.clear();
    embedding = {};
    blocks.clear();
    num_shared_blocks = 0;
    num_computed = 0;
    if (num_generated() == 0) looked_at.clear();
  }
};

}  // namespace droidspeak
