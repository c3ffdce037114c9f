// The layers of SmolLM2-135M with random weights: how fast the operations run a whole prefill or
// decode step, and which of them take the time.
#pragma once

#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "kv/kv_cache.h"
#include "ops/ops.h"
#include "tensor/tensor.h"

namespace droidspeak::bench {

class SmolLm2Shape {
 public:
  static constexpr int32_t kLayers = 30;
  static constexpr int32_t kDim = 576;
  static constexpr int32_t kHeads = 9;
  static constexpr int32_t kKvHeads = 3;
  static constexpr int32_t kHeadDim = 64;
  static constexpr int32_t kHidden = 1536;
  static constexpr int32_t kVocabulary = 49152;
  static constexpr int32_t kMaxTokens = 8192;

  enum Phase { kLinear, kAttention, kElementwise, kHead, kNumPhases };

  SmolLm2Shape(Ops& ops, int num_threads, DType weights, DType cache);

  // Runs `rows` tokens per sequence from `position` on through all layers, then the output matrix
  // for each sequence's last row. Returns milliseconds.
  double step(int32_t num_sequences, int32_t position, int32_t rows);

  // Milliseconds of the last step by phase.
  const std::array<double, kNumPhases>& phases() const { return phases_; }

 private:
  struct Layer {
    std::unique_ptr<WeightMatrix> qkv, out, gate_up, down;
  };

  void run_layer(int32_t index, std::span<const SequenceSlice> slices, int64_t rows);

  Ops& ops_;
  int num_threads_;
  std::vector<Layer> layers_;
  std::unique_ptr<WeightMatrix> table_;
  KvCache cache_;
  std::vector<BlockTable> tables_;
  std::vector<float> rope_;
  std::vector<float> norm_;
  Tensor x_, normed_, qkv_, attended_, gate_up_, hidden_, logits_;
  std::array<double, kNumPhases> phases_{};
};

}  // namespace droidspeak::bench
