// Takes a sequence from admission to the point where all its prompt has K/V: starts what its choice
// says (start_load() is where a plan becomes work), follows loads and recomputation, and chooses
// again when a load fails. Used by the engine thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "engine/cost_model.h"
#include "engine/load_patience.h"
#include "engine/metrics_board.h"
#include "engine/prefill_chooser.h"
#include "engine/prompt_writer.h"
#include "engine/sequence.h"

namespace droidspeak {

class PromptReader {
 public:
  // Everything outlives the reader.
  struct Parts {
    Ops& ops;
    KvCache& kv;
    std::shared_ptr<CacheStore> store;  // with loads that hang
    const PrefillChooser& chooser;
    const PromptWriter& writer;
    CostModel& costs;
    MetricsBoard& metrics;
    TransferThreads& host_threads;  // for what is in host memory, and cannot hang
    TransferThreads& slow_threads;
    std::function<void()> on_progress;  // of a load; any thread
    std::chrono::milliseconds load_stall{2000};
  };

  explicit PromptReader(Parts parts)
      : parts_(std::move(parts)),
        writer_(parts_.writer),
        patience_(parts_.costs, parts_.load_stall) {}

  // Takes blocks for all tokens and starts loading. False when there is no room for those that it
  // does not share; then it holds none.
  bool begin(Sequence& sequence, size_t num_waiting);
  // The next tokens of a reused context through the layers that its plan recomputes.
  void recompute(Sequence& sequence, int32_t num_tokens);
  // When a load has failed the sequence begins again with what is left.
  void follow_failure(Sequence& sequence, size_t num_waiting);
  // The next rows have passed all layers, so the context before them is complete, too.
  void advance(Sequence& sequence, int32_t num_tokens);
  // What the sequence does to read the tokens that it looks at has come to the end of a stage;
  // `draft` is one token at the end of the scout.
  void look_on(Sequence& sequence, const std::vector<SampledToken>& draft);

 private:
  bool start(Sequence& sequence, size_t num_waiting);
  void choose(Sequence& sequence, size_t num_waiting);
  void refill_inputs(Sequence& sequence, size_t num_waiting);
  void begin_with_the_rest(Sequence& sequence, size_t num_waiting);
  bool has_more_on_device(const Sequence& sequence) const;
  void keep_arrived(Sequence& sequence);
  void keep_resident(Sequence& sequence);
  // Null for raw plans. Chooses another plan when the maps cannot be read.
  std::shared_ptr<const Translator> read_maps(Sequence& sequence, size_t num_waiting);
  bool take_blocks(Sequence& sequence);
  void start_reuse(Sequence& sequence, std::shared_ptr<const Translator> translator);
  void start_load(Sequence& sequence, std::shared_ptr<const Translator> translator);
  void finish_looking(Sequence& sequence);
  void finish_reuse(Sequence& sequence);
  void report_reuse(Sequence& sequence);
  void count_fallback(Sequence& sequence, const std::string& reason, const std::string& text);

  Parts parts_;
  const PromptWriter& writer_;
  LoadPatience patience_;
  std::set<Digest> refilled_;  // last blocks of contexts whose E was asked for again
};

}  // namespace droidspeak
