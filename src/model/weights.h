// Packed weights of one checkpoint and of one LoRA adapter.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"
#include "model/model_config.h"
#include "ops/ops.h"

namespace droidspeak {

struct ExpertWeights {
  std::unique_ptr<WeightMatrix> gate_up;  // [2 * experts.ffn_dim, d_model]: rows of gate, up
  std::unique_ptr<WeightMatrix> down;     // [d_model, experts.ffn_dim]
  Tensor gate_up_bias;                    // [1, 2 * experts.ffn_dim] f32; empty: none
  Tensor down_bias;                       // [1, d_model] f32; empty: none
};

struct LayerWeights {
  std::unique_ptr<WeightMatrix> qkv;     // [qkv_columns, d_model]: rows of q, k, v
  std::unique_ptr<WeightMatrix> output;  // [d_model, q_columns]
  // The plain FFN or the shared expert; null: neither.
  std::unique_ptr<WeightMatrix> gate_up;  // [2 * ffn_dim, d_model]: rows of gate, up
  std::unique_ptr<WeightMatrix> down;     // [d_model, ffn_dim]
  // Null and empty without experts.
  std::unique_ptr<WeightMatrix> router;       // [experts.count, d_model]
  std::unique_ptr<WeightMatrix> shared_gate;  // [1, d_model]; null: no shared expert
  std::vector<ExpertWeights> experts;
  // f32 vectors, empty where the model has no such part.
  Tensor attention_norm;         // [1, d_model], of what attention reads
  Tensor attention_output_norm;  // [1, d_model], of what it adds
  Tensor ffn_norm;               // the same of the FFN
  Tensor ffn_output_norm;
  Tensor qkv_bias;      // [1, qkv_columns]
  Tensor output_bias;   // [1, d_model]
  Tensor gate_up_bias;  // [1, 2 * ffn_dim]
  Tensor down_bias;     // [1, d_model]
  Tensor q_norm;        // [1, head_dim] or, of all heads together, [1, q_columns]
  Tensor k_norm;        // [1, head_dim] or [1, kv_columns]
  Tensor router_bias;   // [1, experts.count]
  Tensor sinks;         // [1, num_heads]
};

// Of a vector that a model may not have.
inline const float* data_or_null(const Tensor& tensor) {
  return tensor.rows() == 0 ? nullptr : static_cast<const float*>(tensor.view().data);
}

// Immutable after loading; shared by every variant that uses these weights.
struct Weights {
  ModelConfig config;
  Precision precision = Precision::kFast;   // they were packed for
  Digest digest;                            // over the weights, not the file name
  std::unique_ptr<WeightMatrix> embedding;  // [vocab_size, d_model]
  std::unique_ptr<WeightMatrix> output;     // [vocab_size, d_model]; null: tied to the embedding
  Tensor output_norm;                       // [1, d_model] f32
  std::vector<LayerWeights> layers;

  const WeightMatrix& output_matrix() const { return output ? *output : *embedding; }

  size_t bytes() const;
};

struct ExpertLora {
  LoraLinear gate_up;
  LoraLinear down;
};

struct LoraLayer {
  LoraLinear qkv;
  LoraLinear output;
  LoraLinear gate_up;
  LoraLinear down;
  std::vector<ExpertLora> experts;  // empty: none is adapted
};

// A PEFT LoRA adapter, applied at run time beside the base weights. Immutable after loading.
struct Adapter {
  Digest digest;
  // Activated LoRA: the adapter applies where these tokens have come, see model/activation.h.
  // Empty: everywhere.
  std::vector<int32_t> invocation;
  std::vector<LoraLayer> layers;
  size_t bytes() const;
};

// Loads a GGUF file or Hugging Face folder. Throws Failure naming file, tensor and what is wrong.
std::shared_ptr<const Weights> load_weights(Ops& ops,
                                            const std::filesystem::path& path,
                                            Precision precision);

// The config alone, without reading weights.
ModelConfig load_config(const std::filesystem::path& path);
// The same, and throws Failure unless every tensor is there, of the right shape and understood.
ModelConfig check_checkpoint(const std::filesystem::path& path);

}  // namespace droidspeak
