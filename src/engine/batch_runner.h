// Runs a batch: embedding, all layers, logits, next tokens. Layers run in one go unless a sequence
// needs to stop in between, to capture its layer inputs (E) or to wait for a layer that is being
// loaded.
#pragma once

#include <optional>
#include <vector>

#include "engine/batch.h"
#include "kv/kv_cache.h"
#include "ops/ops.h"

namespace droidspeak {

class BatchRunner {
 public:
  // Both outlive the runner.
  BatchRunner(Ops& ops, const KvCache& kv) : ops_(ops), kv_(kv) {}

  // One entry per work of the batch: the sampled token where the work completes its sequence.
  // Prompt logprobs are appended to the sequences that want them. Results of a sequence whose load
  // failed meanwhile (its reuse has a failure()) are worthless.
  std::vector<std::optional<SampledToken>> run(const Batch& batch);

 private:
  TensorView forward(const Batch& batch);
  void prepare_layer(const Batch& batch, int32_t layer, TensorView hidden);
  void add_prompt_logprobs(const Batch& batch, size_t index, TensorView hidden);
  std::vector<std::optional<SampledToken>> sample(const Batch& batch, TensorView hidden);
  TensorView logits_of(Transformer& transformer, TensorView rows);
  std::span<float> host_rows(TensorView logits);

  Ops& ops_;
  const KvCache& kv_;
  // Scratch, reused from step to step.
  Tensor hidden_;
  Tensor last_rows_;
  Tensor logits_;
  std::vector<float> host_logits_;
};

}  // namespace droidspeak
