// What the engine is asked and what it answers: plain types, no text, no JSON.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "base/shared.h"
#include "engine/sampler.h"
#include "grammar/compiled_grammar.h"

namespace droidspeak {

struct Variant;

// What a whole engine does across variants; kPlainReuse takes every layer as it is, for comparison.
enum class SharingMode { kOn, kOff, kPlainReuse };

// Which tokens are drafted ahead of decoding. kForced: those that a grammar leaves no choice about;
// kLookup: also what an answer may quote, see engine/prompt_lookup.h. The answers are the same.
enum class Speculation { kNone, kForced, kLookup };

struct SharingRequest {
  // kOff: nothing of other variants; the variant's own prefix cache stays in use.
  enum class Mode { kAuto, kOff, kExplicit } mode = Mode::kAuto;
  std::string sender = {};  // kExplicit
  // kExplicit: a text of parse_plan_request(). With "full" every layer is computed again, own
  // prefix cache included; "auto", "reuse" and "a,b,c" with "+S%" and "r" as they are there.
  std::string plan = {};
  // Who went by `sender` when the request was read; null: who does when it is submitted.
  std::shared_ptr<const Variant> from = {};
};

struct GenerationRequest {
  std::string model = {};  // variant name
  // Who went by it when the request was read, so that all parts of one answer come from the same
  // weights, whatever becomes of the name; null: who does when it is submitted.
  std::shared_ptr<const Variant> variant = {};
  // A further choice of a request that was let in: may take the queue's last places.
  bool continues = false;
  Shared<std::vector<int32_t>> prompt = {};  // at least one token
  int32_t max_tokens = 16;                   // 0: only prompt_logprobs
  SamplingOptions sampling = {};
  Shared<std::set<int32_t>> stop_tokens = {};
  int32_t min_tokens = 0;  // so many come before a stop token can
  // What the answer must look like; null: free text. Shared by all requests that want the same.
  std::shared_ptr<const CompiledGrammar> grammar = {};
  int32_t num_top_logprobs = -1;  // -1: no logprobs
  bool wants_prompt_logprobs = false;
  // Of each token of the prompt, where more than `num_top_logprobs`.
  int32_t num_prompt_alternatives = 0;
  // The prompt's embedding, as the variant pools it: with max_tokens 0, and without any cache.
  bool wants_embedding = false;
  std::string cache_salt = {};
  std::string tenant = {};  // whose request it is: tenants take turns
  int32_t priority = 0;     // within the tenant; smaller ones go first
  SharingRequest sharing = {};
  std::optional<double> ttft_slo_ms = {};
  std::optional<double> min_quality = {};
  std::optional<std::chrono::steady_clock::time_point> deadline = {};
};

// What was done with the prompt.
struct PrefillReport {
  std::string sender;         // empty: nothing was shared across variants
  std::string plan = "full";  // as name_of_followed()
  bool translated = false;
  int32_t reused_tokens = 0;      // context tokens taken from a sender
  int32_t cached_tokens = 0;      // prompt tokens not prefilled in full: own prefix cache or sender
  int32_t recomputed_layers = 0;  // of the reused context
  int32_t looked_at_tokens = 0;   // of the reused context, read through all layers
  std::string tier;               // the slowest that something was loaded from; empty: nothing was
  double load_ms = 0;
  double prefill_ms = 0;
  double queue_ms = 0;
  double ttft_ms = 0;           // from submit to the first token
  std::string fallback;         // why a planned reuse did not happen, or did not go on; empty: none
  std::string fallback_reason;  // the same in a word, as metrics count it
  int32_t fallback_after_tokens = 0;  // of the answer: those were given as the report says
};

enum class FinishReason { kStop, kLength };

struct PromptLogprobs {
  std::vector<SampledToken> tokens;  // tokens 1..n-1 of the prompt
};

// [d_model], of length 1.
struct Embedding {
  std::vector<float> values;
};

struct Finished {
  FinishReason reason = FinishReason::kStop;
  int32_t stop_token = -1;  // the stop token that ended it, not part of the output
};

// A stream is PrefillReport, [PromptLogprobs], [Embedding], SampledToken..., then Finished or
// Error. Another PrefillReport may come later: a preempted sequence could not go on as it had
// begun.
using StreamItem =
    std::variant<PrefillReport, PromptLogprobs, Embedding, SampledToken, Finished, Error>;

// One request's answer on its way from the engine thread to whoever reads it.
class TokenStream {
 public:
  // Waits at most `timeout`; nothing when the time ran out.
  std::optional<StreamItem> next(std::chrono::milliseconds timeout);
  // The reader lost interest; the engine drops the request within one step.
  void cancel();

  // Engine side.
  void push(StreamItem item);
  bool is_cancelled() const;

 private:
  mutable Mutex mutex_;
  Condition changed_;
  std::vector<StreamItem> items_ GUARDED_BY(mutex_);
  size_t next_item_ GUARDED_BY(mutex_) = 0;
  bool cancelled_ GUARDED_BY(mutex_) = false;
};

}  // namespace droidspeak
