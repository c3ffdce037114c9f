// Runs a batch: embedding, all layers, logits, next tokens. Layers run in one go unless a sequence
// needs to stop in between, to capture its layer inputs (E) or to translate a loaded layer.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "engine/batch.h"
#include "kv/kv_cache.h"
#include "ops/ops.h"

namespace droidspeak {

class BatchRunner {
 public:
  // Both outlive the runner.
  BatchRunner(Ops& ops, const KvCache& kv) : ops_(ops), kv_(kv) {}

  struct Sample {
    std::vector<SampledToken> tokens = {};  // where the work gives some: one, and a draft's
    bool has_overflown = false;             // logits are not finite: the sequence cannot go on
    bool is_stuck = false;                  // no token is allowed by its grammar
  };

  // One entry per work of the batch. Prompt logprobs are appended to the sequences that want them.
  using Sampled = std::vector<Sample>;
  Sampled run(const Batch& batch);
  // A batch of one sequence whose context is being loaded: begins its pass or goes on with it
  // through the layers that are ready. Nothing until the last layer is done.
  std::optional<Sampled> follow(const Batch& batch);

 private:
  Sampled finish(const Batch& batch, TensorView hidden);
  // Has at least the batch's rows.
  TensorView forward(const Batch& batch);
  void prepare_layer(const Batch& batch, int32_t layer, TensorView hidden);
  // False when logits are not finite.
  bool add_prompt_logprobs(const Batch& batch, size_t index, TensorView hidden);
  // The same.
  bool add_states(const Batch& batch, size_t index, TensorView hidden);
  void sample(const Batch& batch, TensorView hidden, Sampled& sampled);

  // A row of logits that a token is sampled from.
  struct Row {
    size_t work = 0;
    size_t slice = 0;
    size_t num_before = 0;  // the work's rows in front of it
    int64_t place = 0;      // among the logits
  };

  static std::vector<Row> token_rows(const Batch& batch, const Sampled& sampled);
  // A draft's row counts only if everything before it was drafted rightly.
  static bool counts(Sequence& sequence, const Row& row, const Sample& sample);
  // How the row gives a token; nothing where it must wait for those before it, or gives none.
  static std::optional<RowSampling> sampling_of(Sequence& sequence,
                                                const Row& row,
                                                size_t round,
                                                Sample& sample);
  static void take(Sequence& sequence, const Row& row, SampledToken token, Sample& sample);
  TensorView last_rows(const Batch& batch, std::span<const Row> rows, TensorView hidden);
  TensorView logits_of(Transformer& transformer, TensorView rows);
  std::span<float> host_rows(TensorView logits);

  Ops& ops_;
  const KvCache& kv_;
  // Scratch, reused from step to step.
  Tensor hidden_;
  Tensor last_rows_;
  Tensor logits_;
  Tensor states_;
  std::vector<float> host_logits_;
};

}  // namespace droidspeak
