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
    size_t num_before = 0;  // rows of the work's drafts in front of it
  };

  static std::vector<Row> token_rows(const Batch& batch, const Sampled& sampled);
  void sample_on_host(Sequence& sequence, TensorView logits, Sample& sample);
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
