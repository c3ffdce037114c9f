#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "model/checkpoint.h"
#include "model/weights.h"
#include "tensor/dequantize.h"

namespace droidspeak {
namespace {

// Row i of q or k in half-split order lies at this row of a GGUF file, whose heads are ordered for
// adjacent-pair RoPE: (head, half, i) is stored at (head, i, half).
std::vector<int32_t> half_split_rows(int32_t num_heads, int32_t head_dim) {
  std::vector<int32_t> order;
  for (int32_t head = 0; head < num_heads; ++head) {
    for (int32_t half = 0; half < 2; ++half) {
      for (int32_t i = 0; i < head_dim / 2; ++i) order.push_back(head * head_dim + 2 * i + half);
    }
  }
  return order;
}

MatrixPart as_part(const FileTensor& tensor, std::span<const int32_t> row_order = {}) {
  return {tensor.dtype, tensor.shape[0], tensor.shape[1], tensor.bytes, row_order};
}

class WeightLoader {
 public:
  WeightLoader(Ops& ops, const Checkpoint& checkpoint, Precision precision)
      : ops_(ops), checkpoint_(checkpoint), config_(checkpoint.config()), precision_(precision) {
    if (checkpoint.permutes_qk()) {
      query_order_ = half_split_rows(config_.num_heads, config_.head_dim);
      key_order_ = half_split_rows(config_.num_kv_heads, config_.head_dim);
    }
  }

  std::shared_ptr<const Weights> load() {
    auto weights = std::make_shared<Weights>();
    weights->config = config_;
    weights->digest = checkpoint_.digest();
    weights->embedding = pack({as_part(checkpoint_.matrix(TensorRole::kEmbedding, 0,
                                                          config_.vocab_size, config_.d_model))},
                              "the embedding", most_felt());
    if (!checkpoint_.is_tied()) {
      weights->output = pack({as_part(checkpoint_.matrix(TensorRole::kOutput, 0, config_.vocab_size,
                                                         config_.d_model))},
                             "the output matrix", most_felt());
    }
    weights->output_norm = vector(TensorRole::kOutputNorm, 0, config_.d_model);
    for (int32_t layer = 0; layer < config_.num_layers; ++layer)
      weights->layers.push_back(load_layer(layer));
    return weights;
  }

 private:
  LayerWeights load_layer(int32_t layer) {
    const Architecture& architecture = checkpoint_.architecture();
    LayerWeights w;
    w.attention_norm = vector(TensorRole::kAttentionNorm, layer, config_.d_model);
    w.ffn_norm = vector(TensorRole::kFfnNorm, layer, config_.d_model);
    std::string where = fmt::format("layer {}", layer);
    const bool is_end = layer == 0 || layer == config_.num_layers - 1;
    const Precision precision = is_end ? most_felt() : precision_;
    w.qkv = pack(qkv_parts(layer), where + " q/k/v", most_felt());
    w.output = pack({as_part(checkpoint_.matrix(TensorRole::kAttentionOutput, layer,
                                                config_.d_model, config_.q_columns()))},
                    where + " attention output", precision);
    w.gate_up = pack(gate_up_parts(layer), where + " gate/up", precision);
    w.down = pack(
        {as_part(checkpoint_.matrix(TensorRole::kDown, layer, config_.d_model, config_.ffn_dim))},
        where + " down", precision);
    if (architecture.has_qkv_bias) w.qkv_bias = qkv_bias(layer);
    if (architecture.has_qk_norm) {
      w.q_norm = vector(TensorRole::kQueryNorm, layer, config_.head_dim);
      w.k_norm = vector(TensorRole::kKeyNorm, layer, config_.head_dim);
    }
    return w;
  }

  std::vector<MatrixPart> qkv_parts(int32_t layer) const {
    int64_t d = config_.d_model;
    if (checkpoint_.architecture().fusion == Fusion::kFused) {
      return {as_part(checkpoint_.matrix(TensorRole::kFusedQkv, layer, config_.qkv_columns(), d))};
    }
    return {
        as_part(checkpoint_.matrix(TensorRole::kQuery, layer, config_.q_columns(), d),
                query_order_),
        as_part(checkpoint_.matrix(TensorRole::kKey, layer, config_.kv_columns(), d), key_order_),
        as_part(checkpoint_.matrix(TensorRole::kValue, layer, config_.kv_columns(), d))};
  }

  std::vector<MatrixPart> gate_up_parts(int32_t layer) const {
    int64_t d = config_.d_model;
    if (checkpoint_.architecture().fusion == Fusion::kFused) {
      return {as_part(checkpoint_.matrix(TensorRole::kFusedGateUp, layer, 2 * config_.ffn_dim, d))};
    }
    return {as_part(checkpoint_.matrix(TensorRole::kGate, layer, config_.ffn_dim, d)),
            as_part(checkpoint_.matrix(TensorRole::kUp, layer, config_.ffn_dim, d))};
  }

  Tensor qkv_bias(int32_t layer) {
    std::vector<float> bias;
    auto append = [&](TensorRole role, int32_t size, const std::vector<int32_t>& order) {
      std::vector<float> values = read(checkpoint_.vector(role, layer, size, "bias"));
      for (size_t i = 0; i < values.size(); ++i)
        bias.push_back(values[order.empty() ? i : static_cast<size_t>(order[i])]);
    };
    append(TensorRole::kQuery, config_.q_columns(), query_order_);
    append(TensorRole::kKey, config_.kv_columns(), key_order_);
    append(TensorRole::kValue, config_.kv_columns(), {});
    return upload(bias);
  }

  // Rounded activations are felt most in K and V, which all later tokens read, in the first layer,
  // before all others, and behind the last one, where nothing averages them out.
  Precision most_felt() const {
    return precision_ == Precision::kFast ? Precision::kFine : precision_;
  }

  std::unique_ptr<WeightMatrix> pack(const std::vector<MatrixPart>& parts,
                                     const std::string& what,
                                     Precision precision) {
    try {
      return ops_.pack(parts, precision);
    } catch (const Failure& failure) {
      throw Failure(failure.code(),
                    fmt::format("{}: {}: {}", checkpoint_.path().string(), what, failure.what()));
    }
  }

  std::vector<float> read(const FileTensor& tensor) const {
    std::vector<float> values(static_cast<size_t>(tensor.shape[0]));
    dequantize(tensor.dtype, tensor.bytes, values);
    if (!std::ranges::all_of(values, [](float v) { return std::isfinite(v); })) {
      throw Failure(ErrorCode::kDataCorrupt,
                    fmt::format("{}: tensor \"{}\" holds a value that is not finite",
                                checkpoint_.path().string(), tensor.name));
    }
    return values;
  }

  Tensor upload(const std::vector<float>& values) {
    Tensor tensor(ops_.device(), DType::kF32, 1, static_cast<int64_t>(values.size()));
    ops_.device().to_device(tensor.view().data, values.data(), values.size() * sizeof(float));
    ops_.device().synchronize();
    return tensor;
  }

  Tensor vector(TensorRole role, int32_t layer, int64_t size) {
    return upload(read(checkpoint_.vector(role, layer, size, "weight")));
  }

  Ops& ops_;
  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  Precision precision_;
  std::vector<int32_t> query_order_;
  std::vector<int32_t> key_order_;
};

}  // namespace

size_t Weights::bytes() const {
  size_t total = embedding->bytes() + (output ? output->bytes() : 0) + output_norm.bytes();
  for (const LayerWeights& layer : layers) {
    total +=
        layer.qkv->bytes() + layer.output->bytes() + layer.gate_up->bytes() + layer.down->bytes();
    total += layer.attention_norm.bytes() + layer.ffn_norm.bytes() + layer.qkv_bias.bytes();
  }
  return total;
}

std::shared_ptr<const Weights> load_weights(Ops& ops,
                                            const std::filesystem::path& path,
                                            Precision precision) {
  Checkpoint checkpoint(path);
  return WeightLoader(ops, checkpoint, precision).load();
}

ModelConfig load_config(const std::filesystem::path& path) {
  return Checkpoint(path).config();
}

}  // namespace droidspeak
