#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include <fmt/format.h>

#include "base/error.h"
#include "model/checkpoint.h"
#include "model/row_order.h"
#include "model/weights.h"
#include "tensor/dequantize.h"
#include "tensor/half.h"

namespace droidspeak {
namespace {

// Rows of a linear layer as they lie in one tensor of the file.
struct FilePart {
  FileTensor tensor;
  std::span<const int32_t> row_order = {};
  bool is_transposed = false;  // the tensor is [columns, rows]

  int64_t rows() const { return tensor.shape[is_transposed ? 1 : 0]; }

  int64_t columns() const { return tensor.shape[is_transposed ? 0 : 1]; }
};

using FileParts = std::vector<FilePart>;

// Where the weights of one layer are.
struct LayerTensors {
  const FileTensor* attention_norm = nullptr;  // of these, null: the model has none
  const FileTensor* attention_output_norm = nullptr;
  const FileTensor* ffn_norm = nullptr;
  const FileTensor* ffn_output_norm = nullptr;
  const FileTensor* q_norm = nullptr;
  const FileTensor* k_norm = nullptr;
  const FileTensor* sinks = nullptr;
  FileParts qkv;
  FileParts output;
  FileParts gate_up;  // of these, empty: the model has none
  FileParts down;
  FileParts qkv_bias;
  FileParts output_bias;
  FileParts gate_up_bias;
  FileParts down_bias;
  FileParts router;
  FileParts router_bias;
  FileParts shared_gate;

  struct Expert {
    FileParts gate_up;
    FileParts down;
    FileParts gate_up_bias;
    FileParts down_bias;
  };

  std::vector<Expert> experts;
};

// Finds every tensor of a checkpoint and checks its shape before any of them is read.
class TensorFinder {
 public:
  explicit TensorFinder(const Checkpoint& checkpoint)
      : checkpoint_(checkpoint), config_(checkpoint.config()) {
    if (checkpoint.permutes_qk()) {
      query_order_ = half_split_rows(config_.num_heads, config_.head_dim);
      key_order_ = half_split_rows(config_.num_kv_heads, config_.head_dim);
      qkv_order_ = fused_order();
    }
    if (!checkpoint.is_gguf() && checkpoint.architecture().hf_interleaves_gate_up)
      gate_up_order_ = rows_by_turns(config_.experts.ffn_dim);
    embedding = {matrix(TensorRole::kEmbedding, 0, config_.vocab_size, config_.d_model)};
    if (!checkpoint.is_tied())
      output = {matrix(TensorRole::kOutput, 0, config_.vocab_size, config_.d_model)};
    output_norm = vector(TensorRole::kOutputNorm, 0, config_.d_model);
    for (int32_t layer = 0; layer < config_.num_layers; ++layer)
      layers.push_back(find_layer(layer));
    checkpoint.refuse_other_tensors(used_);
  }

  FileParts embedding;
  FileParts output;  // empty: tied to the embedding
  const FileTensor* output_norm = nullptr;
  std::vector<LayerTensors> layers;

 private:
  LayerTensors find_layer(int32_t layer) {
    const Architecture& architecture = checkpoint_.architecture();
    const int64_t d = config_.d_model;
    const int64_t q = config_.q_columns();
    const int64_t kv = config_.kv_columns();
    LayerTensors found;
    find_norms(layer, found);
    found.output = {matrix(TensorRole::kAttentionOutput, layer, d, q)};
    if (config_.ffn_dim > 0) find_ffn(layer, found);
    if (config_.experts.count > 0) find_experts(layer, found);
    const bool is_fused =
        architecture.fusion == Fusion::kFused || has_fused(TensorRole::kFusedQkv, layer);
    if (is_fused) {
      found.qkv = {in_order(matrix(TensorRole::kFusedQkv, layer, q + 2 * kv, d), qkv_order_)};
    } else {
      found.qkv = {in_order(matrix(TensorRole::kQuery, layer, q, d), query_order_),
                   in_order(matrix(TensorRole::kKey, layer, kv, d), key_order_),
                   matrix(TensorRole::kValue, layer, kv, d)};
    }
    if (config_.parts.has_qkv_bias && is_fused) {
      found.qkv_bias = {in_order(bias(TensorRole::kFusedQkv, layer, q + 2 * kv), qkv_order_)};
    } else if (config_.parts.has_qkv_bias) {
      found.qkv_bias = {in_order(bias(TensorRole::kQuery, layer, q), query_order_),
                        in_order(bias(TensorRole::kKey, layer, kv), key_order_),
                        bias(TensorRole::kValue, layer, kv)};
    }
    if (config_.parts.has_output_bias)
      found.output_bias = {bias(TensorRole::kAttentionOutput, layer, d)};
    if (config_.parts.has_sinks) found.sinks = vector(TensorRole::kSinks, layer, config_.num_heads);
    return found;
  }

  void find_ffn(int32_t layer, LayerTensors& found) {
    const int64_t d = config_.d_model;
    const int64_t ffn = config_.ffn_dim;
    found.down = {matrix(TensorRole::kDown, layer, d, ffn)};
    if (checkpoint_.architecture().fusion == Fusion::kFused) {
      found.gate_up = {matrix(TensorRole::kFusedGateUp, layer, 2 * ffn, d)};
    } else {
      found.gate_up = {matrix(TensorRole::kGate, layer, ffn, d),
                       matrix(TensorRole::kUp, layer, ffn, d)};
    }
    if (config_.parts.has_ffn_bias) {
      found.gate_up_bias = {bias(TensorRole::kGate, layer, ffn), bias(TensorRole::kUp, layer, ffn)};
      found.down_bias = {bias(TensorRole::kDown, layer, d)};
    }
  }

  void find_experts(int32_t layer, LayerTensors& found) {
    const int64_t d = config_.d_model;
    const int64_t ffn = config_.experts.ffn_dim;
    found.router = {matrix(TensorRole::kRouter, layer, config_.experts.count, d)};
    if (config_.parts.has_shared_expert) found.shared_gate = {shared_gate(layer)};
    found.experts.resize(static_cast<size_t>(config_.experts.count));
    using Expert = LayerTensors::Expert;
    const ExpertPlace gate_up{&Expert::gate_up, &Expert::gate_up_bias, gate_up_order_};
    const ExpertPlace down{&Expert::down, &Expert::down_bias, {}};
    auto add = [&](TensorRole role, int64_t rows, int64_t columns, const ExpertPlace& place) {
      add_experts(checkpoint_.expert_matrices(role, layer, rows, columns), place.matrix, place,
                  found);
      if (config_.parts.has_expert_bias)
        add_experts(checkpoint_.expert_biases(role, layer, rows), place.bias, place, found);
    };
    if (has_fused(TensorRole::kExpertFusedGateUp, layer)) {
      add(TensorRole::kExpertFusedGateUp, 2 * ffn, d, gate_up);
    } else {
      add(TensorRole::kExpertGate, ffn, d, gate_up);
      add(TensorRole::kExpertUp, ffn, d, gate_up);
    }
    add(TensorRole::kExpertDown, d, ffn, down);
    if (config_.parts.has_expert_bias)
      found.router_bias = {bias(TensorRole::kRouter, layer, config_.experts.count)};
  }

  // Where tensors of every expert go.
  struct ExpertPlace {
    FileParts LayerTensors::Expert::*matrix;
    FileParts LayerTensors::Expert::*bias;
    std::span<const int32_t> row_order;
  };

  void add_experts(const std::vector<ExpertTensor>& tensors,
                   FileParts LayerTensors::Expert::*part,
                   const ExpertPlace& place,
                   LayerTensors& found) {
    for (size_t e = 0; e < tensors.size(); ++e) {
      used_.insert(tensors[e].whole);
      (found.experts[e].*part)
          .push_back({tensors[e].tensor, place.row_order, tensors[e].is_transposed});
    }
  }

  // GGUF files may have in one tensor what those of their architecture have apart.
  bool has_fused(TensorRole role, int32_t layer) const {
    if (!checkpoint_.is_gguf())
      return role == TensorRole::kExpertFusedGateUp && checkpoint_.has_name(role);
    return checkpoint_.has_name(role) && checkpoint_.find(role, layer, "weight") != nullptr;
  }

  // Of q, k and v below each other.
  std::vector<int32_t> fused_order() const {
    std::vector<int32_t> order = query_order_;
    for (int32_t row : key_order_) order.push_back(config_.q_columns() + row);
    while (std::ssize(order) < config_.qkv_columns())
      order.push_back(static_cast<int32_t>(order.size()));
    return order;
  }

  // A matrix of one row, in older GGUF files a vector.
  FilePart shared_gate(int32_t layer) {
    const FileTensor* gate = checkpoint_.find(TensorRole::kSharedExpertGate, layer, "weight");
    if (!checkpoint_.is_gguf() || (gate != nullptr && gate->shape.size() == 2))
      return matrix(TensorRole::kSharedExpertGate, layer, 1, config_.d_model);
    FileTensor row = *vector(TensorRole::kSharedExpertGate, layer, config_.d_model);
    row.shape = {1, config_.d_model};
    return {row};
  }

  void find_norms(int32_t layer, LayerTensors& found) {
    const ModelParts& parts = config_.parts;
    if (parts.norms != NormPlacement::kAfter) {
      found.attention_norm = vector(TensorRole::kAttentionNorm, layer, config_.d_model);
      found.ffn_norm = vector(TensorRole::kFfnNorm, layer, config_.d_model);
    }
    if (parts.norms != NormPlacement::kBefore) {
      found.attention_output_norm =
          vector(TensorRole::kAttentionOutputNorm, layer, config_.d_model);
      found.ffn_output_norm = vector(TensorRole::kFfnOutputNorm, layer, config_.d_model);
    }
    if (parts.qk_norm == QkNorm::kNone) return;
    const bool is_whole = parts.qk_norm == QkNorm::kWhole;
    found.q_norm =
        vector(TensorRole::kQueryNorm, layer, is_whole ? config_.q_columns() : config_.head_dim);
    found.k_norm =
        vector(TensorRole::kKeyNorm, layer, is_whole ? config_.kv_columns() : config_.head_dim);
  }

  static FilePart in_order(FilePart part, std::span<const int32_t> order) {
    return {part.tensor, order};
  }

  FilePart bias(TensorRole role, int32_t layer, int64_t size) {
    return {*vector(role, layer, size, "bias")};
  }

  FilePart matrix(TensorRole role, int32_t layer, int64_t rows, int64_t columns) {
    return {*use(checkpoint_.matrix(role, layer, rows, columns))};
  }

  const FileTensor* vector(TensorRole role,
                           int32_t layer,
                           int64_t size,
                           std::string_view suffix = "weight") {
    return use(checkpoint_.vector(role, layer, size, suffix));
  }

  const FileTensor* use(const FileTensor& tensor) {
    used_.insert(&tensor);
    return &tensor;
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  std::vector<int32_t> query_order_;
  std::vector<int32_t> key_order_;
  std::vector<int32_t> qkv_order_;
  std::vector<int32_t> gate_up_order_;  // empty: gate, then up
  std::set<const FileTensor*> used_;
};

class WeightLoader {
 public:
  WeightLoader(Ops& ops, const Checkpoint& checkpoint, Precision precision)
      : ops_(ops), checkpoint_(checkpoint), tensors_(checkpoint), precision_(precision) {}

  std::shared_ptr<const Weights> load() {
    auto weights = std::make_shared<Weights>();
    weights->config = checkpoint_.config();
    weights->precision = precision_;
    weights->digest = checkpoint_.digest();
    weights->embedding = pack(tensors_.embedding, "the embedding", most_felt());
    if (!tensors_.output.empty())
      weights->output = pack(tensors_.output, "the output matrix", most_felt());
    weights->output_norm = upload_norm(tensors_.output_norm);
    for (size_t layer = 0; layer < tensors_.layers.size(); ++layer)
      weights->layers.push_back(load_layer(layer));
    checkpoint_.check_unchanged();
    return weights;
  }

 private:
  LayerWeights load_layer(size_t layer) {
    const LayerTensors& tensors = tensors_.layers[layer];
    const std::string where = fmt::format("layer {}", layer);
    const bool is_end = layer == 0 || layer == tensors_.layers.size() - 1;
    const Precision precision = is_end ? most_felt() : precision_;
    LayerWeights w;
    w.attention_norm = upload_norm(tensors.attention_norm);
    w.attention_output_norm = upload_norm(tensors.attention_output_norm);
    w.ffn_norm = upload_norm(tensors.ffn_norm);
    w.ffn_output_norm = upload_norm(tensors.ffn_output_norm);
    w.q_norm = upload_norm(tensors.q_norm);
    w.k_norm = upload_norm(tensors.k_norm);
    w.qkv = pack_dense(tensors.qkv, where + " q/k/v", most_felt());
    w.output = pack_dense(tensors.output, where + " attention output", precision);
    if (!tensors.gate_up.empty()) {
      w.gate_up = pack_dense(tensors.gate_up, where + " gate/up", precision);
      w.down = pack_dense(tensors.down, where + " down", precision);
    }
    load_experts(tensors, where, precision, w);
    w.qkv_bias = upload_bias(tensors.qkv_bias);
    w.output_bias = upload_bias(tensors.output_bias);
    w.gate_up_bias = upload_bias(tensors.gate_up_bias);
    w.down_bias = upload_bias(tensors.down_bias);
    if (tensors.sinks != nullptr) w.sinks = upload(read_sinks(*tensors.sinks));
    return w;
  }

  void load_experts(const LayerTensors& tensors,
                    const std::string& where,
                    Precision precision,
                    LayerWeights& w) {
    if (tensors.experts.empty()) return;
    w.router = pack(tensors.router, where + " router", most_felt());
    w.router_bias = upload_bias(tensors.router_bias);
    if (!tensors.shared_gate.empty())
      w.shared_gate = pack(tensors.shared_gate, where + " gate of the shared expert", most_felt());
    for (size_t e = 0; e < tensors.experts.size(); ++e) {
      const std::string expert = fmt::format("{} expert {}", where, e);
      w.experts.push_back({pack(tensors.experts[e].gate_up, expert + " gate/up", precision),
                           pack(tensors.experts[e].down, expert + " down", precision),
                           upload_bias(tensors.experts[e].gate_up_bias),
                           upload_bias(tensors.experts[e].down_bias)});
    }
  }

  // Rounded activations are felt most in K and V, which all later tokens read, in the first layer,
  // before all others, and behind the last one, where nothing averages them out.
  Precision most_felt() const {
    return precision_ == Precision::kFast ? Precision::kFine : precision_;
  }

  enum class Fp8 { kExpand, kKeep };

  // What all rows of a layer are multiplied with: 8-bit floats stay as they are for devices that
  // take them.
  std::unique_ptr<WeightMatrix> pack_dense(const FileParts& parts,
                                           const std::string& what,
                                           Precision precision) {
    const bool keeps_fp8 =
        precision != Precision::kExact && ops_.takes_fp8() &&
        std::ranges::none_of(parts, [](const FilePart& part) { return part.is_transposed; });
    return pack(parts, what, precision, keeps_fp8 ? Fp8::kKeep : Fp8::kExpand);
  }

  std::unique_ptr<WeightMatrix> pack(const FileParts& parts,
                                     const std::string& what,
                                     Precision precision,
                                     Fp8 fp8 = Fp8::kExpand) {
    buffers_.resize(std::max(buffers_.size(), parts.size()));
    std::vector<MatrixPart> in_memory;
    for (size_t i = 0; i < parts.size(); ++i) {
      const FileTensor& tensor = parts[i].tensor;
      const DType dtype = read_matrix(tensor, precision, fp8, buffers_[i]);
      if (parts[i].is_transposed) transpose(dtype, parts[i].rows(), buffers_[i]);
      in_memory.push_back(
          {dtype, parts[i].rows(), parts[i].columns(), buffers_[i], parts[i].row_order});
    }
    try {
      return ops_.pack(in_memory, precision);
    } catch (const Failure& failure) {
      throw Failure(failure.code(),
                    fmt::format("{}: {}: {}", checkpoint_.path().string(), what, failure.what()));
    }
  }

  // Floats that were made of fewer bits would cost as much memory as those of 32: they are rounded
  // unless all bits count.
  static DType read_matrix(const FileTensor& tensor,
                           Precision precision,
                           Fp8 fp8,
                           std::vector<std::byte>& out) {
    tensor.read(out);
    const bool expands = tensor.dtype == DType::kFp8 && fp8 == Fp8::kExpand;
    if (expands) expand_to_floats(tensor.dtype, out);
    const DType dtype = expands ? DType::kF32 : tensor.dtype;
    if (precision == Precision::kExact || !tensor.bytes.are_made() || dtype != DType::kF32)
      return dtype;
    const size_t count = out.size() / sizeof(float);
    for (size_t i = 0; i < count; ++i) {
      float value = 0;
      std::memcpy(&value, out.data() + i * sizeof value, sizeof value);
      const uint16_t half = bf16_from_float(value);
      std::memcpy(out.data() + i * sizeof half, &half, sizeof half);
    }
    out.resize(count * sizeof(uint16_t));
    return DType::kBF16;
  }

  static void expand_to_floats(DType dtype, std::vector<std::byte>& matrix) {
    const DTypeTraits& block = traits(dtype);
    const size_t blocks = matrix.size() / static_cast<size_t>(block.block_bytes);
    std::vector<std::byte> expanded(blocks * static_cast<size_t>(block.block_elements) *
                                    sizeof(float));
    dequantize(dtype, matrix,
               {reinterpret_cast<float*>(expanded.data()), expanded.size() / sizeof(float)});
    matrix.swap(expanded);
  }

  // To [rows, columns]; elements are floats of some kind, as safetensors have them.
  static void transpose(DType dtype, int64_t rows, std::vector<std::byte>& matrix) {
    std::vector<std::byte> turned(matrix.size());
    if (bytes_of(dtype, 1) == sizeof(uint16_t)) {
      transpose_elements<sizeof(uint16_t)>(matrix, rows, turned);
    } else {
      transpose_elements<sizeof(float)>(matrix, rows, turned);
    }
    matrix.swap(turned);
  }

  template <int64_t kSize>
  static void transpose_elements(std::span<const std::byte> in,
                                 int64_t rows,
                                 std::span<std::byte> out) {
    constexpr int64_t kTile = 64;  // lines of both stay in the cache
    const int64_t columns = std::ssize(in) / (kSize * rows);
    for (int64_t first = 0; first < columns; first += kTile) {
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t column = first; column < std::min(first + kTile, columns); ++column)
          std::memcpy(out.data() + (row * columns + column) * kSize,
                      in.data() + (column * rows + row) * kSize, kSize);
      }
    }
  }

  std::vector<float> read(const FileTensor& tensor) const {
    std::vector<float> values = tensor.read_floats();
    if (!std::ranges::all_of(values, [](float v) { return std::isfinite(v); })) {
      throw Failure(ErrorCode::kDataCorrupt,
                    fmt::format("{}: tensor \"{}\" holds a value that is not finite",
                                checkpoint_.path().string(), tensor.name));
    }
    return values;
  }

  // Scores, which kernels take in other units: far from the largest float.
  std::vector<float> read_sinks(const FileTensor& tensor) const {
    constexpr float kMost = 1e30f;
    std::vector<float> sinks = read(tensor);
    if (!std::ranges::all_of(sinks, [](float sink) { return std::abs(sink) <= kMost; })) {
      throw Failure(ErrorCode::kDataCorrupt,
                    fmt::format("{}: tensor \"{}\" holds a score beyond {}",
                                checkpoint_.path().string(), tensor.name, kMost));
    }
    return sinks;
  }

  Tensor upload(const std::vector<float>& values) {
    Tensor tensor(ops_.device(), DType::kF32, 1, static_cast<int64_t>(values.size()));
    ops_.device().to_device(tensor.view().data, values.data(), values.size() * sizeof(float));
    ops_.device().synchronize();
    return tensor;
  }

  // Empty when there is none.
  Tensor upload_norm(const FileTensor* tensor) {
    if (tensor == nullptr) return {};
    std::vector<float> values = read(*tensor);
    if (!checkpoint_.is_gguf() && checkpoint_.architecture().hf_norms_lack_one) {
      for (float& value : values) value += 1;
    }
    return upload(values);
  }

  // Empty when there is none.
  Tensor upload_bias(const FileParts& parts) {
    if (parts.empty()) return {};
    std::vector<float> bias;
    for (const FilePart& part : parts) {
      std::vector<float> values = read(part.tensor);
      for (size_t i = 0; i < values.size(); ++i)
        bias.push_back(values[part.row_order.empty() ? i : static_cast<size_t>(part.row_order[i])]);
    }
    return upload(bias);
  }

  Ops& ops_;
  const Checkpoint& checkpoint_;
  TensorFinder tensors_;
  Precision precision_;
  std::vector<std::vector<std::byte>> buffers_;  // bytes of the matrices that are being packed
};

}  // namespace

size_t Weights::bytes() const {
  size_t total = embedding->bytes() + (output ? output->bytes() : 0) + output_norm.bytes();
  for (const LayerWeights& layer : layers) {
    for (const auto* matrix : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down,
                               &layer.router, &layer.shared_gate})
      total += *matrix ? (*matrix)->bytes() : 0;
    for (const ExpertWeights& expert : layer.experts)
      total += expert.gate_up->bytes() + expert.down->bytes() + expert.gate_up_bias.bytes() +
               expert.down_bias.bytes();
    for (const Tensor* vector :
         {&layer.attention_norm, &layer.attention_output_norm, &layer.ffn_norm,
          &layer.ffn_output_norm, &layer.qkv_bias, &layer.output_bias, &layer.gate_up_bias,
          &layer.down_bias, &layer.q_norm, &layer.k_norm, &layer.router_bias, &layer.sinks})
      total += vector->bytes();
  }
  return total;
}

namespace {

// What kernels of a device ask for.
void check_sizes(Ops& ops, const std::filesystem::path& path, const ModelConfig& c) {
  auto refuse = [&](const std::string& what) {
    throw Failure(ErrorCode::kInvalidArgument, fmt::format("{}: {}", path.string(), what));
  };
  if (c.head_dim > ops.max_head_dim())
    refuse(
        fmt::format("head size {}: this device takes at most {}", c.head_dim, ops.max_head_dim()));
  if (ops.device().kind() == DeviceKind::kCpu) return;
  for (const auto& [what, size] : {std::pair{"head size", c.head_dim},
                                   {"hidden size", c.d_model},
                                   {"FFN size", c.ffn_dim},
                                   {"size of an expert", c.experts.ffn_dim}}) {
    if (size % 8 != 0)
      refuse(fmt::format("{} {}: this device takes multiples of 8, the CPU any", what, size));
  }
}

}  // namespace

std::shared_ptr<const Weights> load_weights(Ops& ops,
                                            const std::filesystem::path& path,
                                            Precision precision) {
  Checkpoint checkpoint(path);
  check_sizes(ops, path, checkpoint.config());
  return WeightLoader(ops, checkpoint, precision).load();
}

ModelConfig load_config(const std::filesystem::path& path) {
  return Checkpoint(path).config();
}

ModelConfig check_checkpoint(const std::filesystem::path& path) {
  Checkpoint checkpoint(path);
  TensorFinder tensors(checkpoint);
  return checkpoint.config();
}

}  // namespace droidspeak
