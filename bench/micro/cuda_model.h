// A model of random weights of a known shape, and its decode steps.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "kv/kv_cache.h"
#include "ops/cuda/steps/fast_paths.h"
#include "random_weights.h"

namespace droidspeak::cuda {

struct ModelShape {
  std::string_view name;
  int32_t layers;
  int64_t dim;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  int64_t ffn;
  int64_t vocab;
  int32_t experts = 0;  // of a layer, each an FFN; 0: one FFN
  int32_t experts_of_row = 0;

  int64_t q_columns() const { return int64_t{heads} * head_dim; }

  int64_t qkv_columns() const { return int64_t{heads + 2 * kv_heads} * head_dim; }
};

inline constexpr ModelShape kShapes[] = {{"8b", 32, 4096, 32, 8, 128, 14336, 128256},
                                         {"70b", 80, 8192, 64, 8, 128, 28672, 128256},
                                         {"small", 30, 576, 9, 3, 64, 1536, 49152},
                                         {"mixtral", 32, 4096, 32, 8, 128, 14336, 32000, 8, 2}};

// Operations of a step.
struct Parts {
  bool norms = true;
  bool rotation = true;
  bool attention = true;
  bool activation = true;
  bool small_products = true;  // qkv and output
  bool large_products = true;  // gate and up, down
  bool logits = true;
};

class Model {
 public:
  struct Options {
    ModelShape shape;
    int32_t batch = 1;
    int32_t context = 1024;
    DType dtype = DType::kBF16;  // of the weights
    int32_t num_adapters = 1;
    int32_t prompt = 0;  // tokens that there is room for
  };

  Model(CudaDevice& device, Ops& ops, const Options& options);

  int32_t batch() const { return batch_; }

  int64_t vocab() const { return shape_.vocab; }

  // Bytes that a step of so many sequences of the base model reads.
  double bytes(int32_t batch) const;

  static constexpr int kNoAdapter = -1;

  struct Row {
    int32_t sequence = 0;
    int adapter = kNoAdapter;
  };

  // What is done with the logits, and waits; nothing: argmax.
  using Finish = std::function<void(TensorView logits)>;

  struct Work {
    std::vector<Row> rows;  // those of one adapter together
    Finish finish = {};
    Parts parts = {};
  };

  // Step number `number` of them.
  using Plan = std::function<Work(int32_t number)>;

  // All sequences in every step, with one adapter or none.
  Plan fixed_plan(int adapter, const Parts& parts = {}) const;

  // Milliseconds of a step in the fastest of three runs.
  double ms_of_step(Ops& ops, const Plan& plan);

  // Milliseconds of all layers for a prompt of so many tokens, in one chunk; the fastest of three
  // runs after one that does not count.
  double ms_of_prompt(Ops& ops, int32_t tokens);

  // Of the products that a token passes through, the head left out.
  double weights_of_layers() const;

 private:
  static constexpr int32_t kWarmUp = 4;
  static constexpr int32_t kSteps = 40;

  struct Adapter {
    LoraLinear qkv, output, gate_up, down;
  };

  struct Layer {
    std::unique_ptr<WeightMatrix> qkv, output, gate_up, down;
    std::vector<Adapter> adapters;
  };

  // Of one step, with rows for nothing behind the others.
  struct Views {
    TensorView hidden, normed, qkv, attended, gate_up, activated, low;
  };

  int32_t max_positions() const { return context_ + kWarmUp + kSteps; }

  // Layers take turns with the experts of these, which are far larger than any cache.
  static constexpr size_t kExpertLayers = 2;

  size_t kv_bytes(int32_t prompt) const;
  void fill_tables(Device& device);
  void make_experts(Ops& ops, const RandomWeights& values);
  Adapter make_adapter(Ops& ops, const RandomWeights& values) const;
  void step(Ops& ops, const Work& work, int32_t number);
  void queue_layer(Ops& ops, const Layer& layer, const KvLayerView& kv, const Work& work);
  void queue_ffn(Ops& ops, const Layer& layer, const Work& work);
  void correct(Ops& ops,
               const Layer& layer,
               LoraLinear Adapter::*which,
               const Work& work,
               TensorView in,
               TensorView out);

  ModelShape shape_;
  int32_t batch_;
  int32_t context_;
  KvCache kv_;
  Tensor norm_, rope_, hidden_, normed_, qkv_, attended_, gate_up_, activated_, low_, logits_;
  std::vector<Layer> layers_;
  std::unique_ptr<WeightMatrix> table_;  // embedding and output
  std::unique_ptr<WeightMatrix> router_;
  std::vector<std::unique_ptr<WeightMatrix>> expert_matrices_;
  std::vector<ExpertMatrices> experts_[kExpertLayers];
  std::vector<int32_t> blocks_;
  std::vector<SequenceSlice> slices_;
  std::vector<LoraRows> lora_rows_;
  Views views_;
};

}  // namespace droidspeak::cuda
