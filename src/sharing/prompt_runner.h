// One prompt at a time over a family's models: the path of commands, evaluation and profiler. (The
// engine runs many at once from the same parts.)
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/kv_cache.h"
#include "model/family.h"
#include "sharing/context_reuse.h"
#include "sharing/reuse_plan.h"
#include "sharing/write_back.h"
#include "store/cache_store.h"

namespace droidspeak {

// How a prompt's context is obtained. Without a sender everything is computed.
struct PromptJob {
  std::shared_ptr<const Variant> receiver;
  std::shared_ptr<const Variant> sender;
  ReusePlan plan;
  std::shared_ptr<const Translator> translator;
  int32_t context_tokens =
      0;  // at most this many leading tokens are shared; rounded down to blocks
  // Hidden rows are wanted from this position on; that of the last token always is.
  int32_t first_output = 0;
  // For plans that look at tokens: from which layer on attention counts, and where the answer
  // begins, in front of which the scout ends (0: behind all tokens).
  int32_t look_layer = 0;
  int32_t answer_begin = 0;

  static constexpr int32_t kLastToken = std::numeric_limits<int32_t>::max();
};

struct PromptTimings {
  double load_ms = 0;  // transfer thread
  LoadTimes load_times{};
  double recompute_ms = 0;  // context layers of the plan
  double look_ms = 0;       // scout and choice
  double suffix_ms = 0;     // with the tokens that are looked at
  double prefill_ms = 0;    // wall time until the last hidden row
  int32_t reused_tokens = 0;
  int32_t looked_at_tokens = 0;
  Tier tier = Tier::kHost;
  std::string fallback;  // why a planned reuse became a full prefill
};

class PromptRunner {
 public:
  // `chunk_tokens`: rows per forward pass; 0: as many as suit the device.
  PromptRunner(Ops& ops, KvCache& kv, CacheStore& store, int32_t chunk_tokens = 0);

  Ops& ops() { return ops_; }

  KvCache& kv() { return kv_; }

  CacheStore& store() { return store_; }

  // Hidden rows after the last layer, as they are computed: positions from `first_position`. Rows
  // before the job's first_output are no results.
  using Visit = std::function<void(int32_t first_position, TensorView hidden)>;

  // Runs the tokens that the plan does not take from the sender; an activated LoRA is active from
  // its last invocation in `tokens` on. `table` then holds K/V of all of
  // them and grows as needed. Throws Failure(kExhausted) when the K/V memory is too small. `visit`
  // sees at least the last token's row.
  PromptTimings partial_prefill(std::span<const int32_t> tokens,
                                const PromptJob& job,
                                BlockTable& table,
                                const Visit& visit);

  // Hidden row of one more token at `position`, behind the invocation of an activated variant (see
  // answering()). Throws Failure(kExhausted) when the table cannot
  // grow.
  TensorView decode(const Variant& variant, int32_t token, int32_t position, BlockTable& table);

  // Makes sure the store holds the variant's own caches of all full blocks of `tokens` and E at
  // `layers`; reads the context when it does not. Returns milliseconds spent, 0 when all was there.
  double ensure_cached(const Variant& variant,
                       std::span<const int32_t> tokens,
                       const std::vector<int32_t>& layers,
                       const std::string& salt = "");

  std::vector<Digest> keys_of(const Variant& variant,
                              std::span<const int32_t> tokens,
                              const std::string& salt = "") const;

 private:
  ReuseJob reuse_job(std::span<const int32_t> context,
                     const PromptJob& job,
                     const BlockTable& table) const;
  // Tokens from `begin` on through all layers; a reused layer is waited for when the first rows
  // reach it. False when loading failed: nothing was visited then. `mass`: of the last row.
  bool forward_rows(std::span<const int32_t> tokens,
                    int32_t begin,
                    const PromptJob& job,
                    const BlockTable& table,
                    ContextReuse* reuse,
                    const Visit& visit,
                    const AttentionMass* mass = nullptr);
  // Hidden row of one token of an answer.
  TensorView forward_one(const Variant& variant, int32_t token, const BatchSlice& slice);
  // The tokens of the context that the prompt looks at, see look.h; nothing when a load has failed.
  std::optional<std::vector<int32_t>> look(std::span<const int32_t> prompt,
                                           int32_t context_tokens,
                                           const PromptJob& job,
                                           BlockTable& table,
                                           ContextReuse& reuse);
  // The tokens at these positions and all behind the context in one go: in each layer the latter
  // see what the former have just stored.
  void read(std::span<const int32_t> tokens,
            std::vector<int32_t> positions,
            int32_t context_tokens,
            const PromptJob& job,
            const BlockTable& table,
            const Visit& visit);

  Ops& ops_;
  KvCache& kv_;
  CacheStore& store_;
  WriteBack write_back_;
  int32_t chunk_tokens_;
  TransferThreads transfers_;
  Tensor hidden_;
  Tensor logits_;
};

// The most likely token of each row of logits. Throws Failure(kDataCorrupt) when a logit is not
// finite.
void greedy_tokens(Ops& ops, TensorView logits, std::span<int32_t> tokens);

}  // namespace droidspeak
