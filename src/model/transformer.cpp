#include "model/transformer.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace droidspeak {
namespace {

int32_t output_rows(const BatchSlice& slice) {
  return std::min(slice.output_rows, slice.sequence.num_rows);
}

// In the last layer a prompt's last row is summed alone, however many rows come before it.
bool ends_prompt_alone(const BatchSlice& slice) {
  return slice.output_rows == 1 && slice.sequence.num_rows == 1 &&
         slice.sequence.num_prompt_rows() == 1;
}

// body(slice, its first wanted row in the batch, that row's place among all wanted rows).
template <class Body>
void for_each_output(std::span<const BatchSlice> slices, const Body& body) {
  int64_t place = 0;
  for (const BatchSlice& slice : slices) {
    const int32_t count = output_rows(slice);
    if (count > 0) body(slice, slice.sequence.first_row + slice.sequence.num_rows - count, place);
    place += count;
  }
}

constexpr int32_t kStillDim = 2;  // the smallest part of a head that can be turned

Tensor upload_rope_table(Device& device, const Rotation& rotation, int32_t max_positions) {
  const std::vector<float> values = make_rope_table(rotation, max_positions);
  Tensor table(device, DType::kF32, max_positions, 2 * std::ssize(rotation.frequencies));
  device.to_device(table.view().data, values.data(), values.size() * sizeof(float));
  device.synchronize();
  return table;
}

void set_sequences(std::span<const BatchSlice> slices, std::vector<SequenceSlice>& out) {
  out.clear();
  for (const BatchSlice& slice : slices) out.push_back(slice.sequence);
}

ModelUse use_of(const Weights& weights, int32_t max_positions) {
  auto rounds = [](const std::unique_ptr<WeightMatrix>& matrix) {
    return matrix && matrix->rounds_input();
  };
  return {.precision = weights.precision,
          .max_positions = max_positions,
          .rounds_activations = std::ranges::any_of(weights.layers, [&](const LayerWeights& w) {
            return rounds(w.qkv) || rounds(w.output) || rounds(w.gate_up) || rounds(w.down);
          })};
}

}  // namespace

Transformer::Transformer(Ops& ops, std::shared_ptr<const Weights> weights, int32_t max_positions)
    : ops_(ops),
      weights_(std::move(weights)),
      max_positions_(max_positions),
      configuration_(configuration_digest(config(), use_of(*weights_, max_positions))),
      formula_(formula_digest(config(), use_of(*weights_, max_positions))),
      rope_table_(upload_rope_table(
          ops.device(), rotation_of(config().rope, max_positions), max_positions)),
      experts_(ops) {
  if (config().local_rope) {
    local_rope_table_ = upload_rope_table(
        ops.device(), rotation_of(*config().local_rope, max_positions), max_positions);
  }
  if (!config().unrotated_layers.empty()) {
    const Rotation still{.frequencies = std::vector<float>(kStillDim / 2)};
    still_table_ = upload_rope_table(ops.device(), still, max_positions);
  }
}

RopeOptions Transformer::rope_options(int32_t layer) const {
  const ModelConfig& c = config();
  const LayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
  const RopeConfig& rope = c.rope_of(layer);
  const bool is_rotated = c.is_rotated(layer);
  const Tensor& rotation = &rope == &c.rope ? rope_table_ : local_rope_table_;
  const Tensor& table = is_rotated ? rotation : still_table_;
  const bool norms_heads = c.parts.qk_norm == QkNorm::kPerHead;
  return {.num_heads = c.num_heads,
          .num_kv_heads = c.num_kv_heads,
          .head_dim = c.head_dim,
          .rotary_dim = is_rotated ? rope.rotary_dim : kStillDim,
          .table = static_cast<const float*>(table.view().data),
          .attention_factor = is_rotated ? static_cast<float>(rope.scaling.attention_factor) : 1.0f,
          .q_norm = norms_heads ? data_or_null(w.q_norm) : nullptr,
          .k_norm = norms_heads ? data_or_null(w.k_norm) : nullptr,
          .norm_epsilon = c.norm_epsilon};
}

void Transformer::embed(std::span<const int32_t> tokens, TensorView hidden) {
  ops_.embed(*weights_->embedding, tokens, hidden);
  if (config().embedding_scale != 1) ops_.scale(hidden, config().embedding_scale, 0);
}

void Transformer::forward_layers(LayerRange range,
                                 std::span<const BatchSlice> slices,
                                 const KvCache& kv,
                                 TensorView hidden) {
  check(range.begin >= 0 && range.end <= config().num_layers, "layer range inside the model");
  bool is_decode = true;
  bool wants_all = true;
  for (const BatchSlice& slice : slices) {
    check(slice.sequence.length() <= max_positions_, "positions within the RoPE table");
    is_decode = is_decode && slice.is_decoded();
    wants_all =
        wants_all && output_rows(slice) == slice.sequence.num_rows && !ends_prompt_alone(slice);
  }
  const bool has_output_layer = range.end == config().num_layers && !wants_all && !is_decode;
  set_sequences(slices, sequence_slices_);
  auto queue_layers = [&] {
    for (int32_t layer = range.begin; layer < range.end - (has_output_layer ? 1 : 0); ++layer) {
      TensorView qkv = store_kv(layer, slices, kv, hidden);
      attention_block(layer, slices, kv.layer(layer), qkv, hidden);
      ffn_block(layer, slices, hidden);
    }
  };
  // The next tokens come with the same operations; a layer on its own is not worth the record.
  const bool can_repeat = is_decode && range.end - range.begin > 1;
  if (can_repeat) return ops_.repeat(queue_layers);
  queue_layers();
  if (has_output_layer) output_layer(slices, kv, hidden);
}

void Transformer::forward_to_kv(LayerRange range,
                                std::span<const BatchSlice> slices,
                                const KvCache& kv,
                                TensorView hidden) {
  check(range.begin < range.end, "at least one layer");
  forward_layers({range.begin, range.end - 1}, slices, kv, hidden);
  store_kv(range.end - 1, slices, kv, hidden);
}

TensorView Transformer::store_kv(int32_t layer,
                                 std::span<const BatchSlice> slices,
                                 const KvCache& kv,
                                 TensorView hidden) {
  const ModelConfig& c = config();
  const LayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
  DType dtype = ops_.activation_dtype();
  TensorView qkv = qkv_.reshape(ops_.device(), dtype, hidden.rows, c.qkv_columns());
  TensorView in = normed(hidden, w.attention_norm, w.qkv.get());
  ops_.linear(*w.qkv, in, qkv, Accumulate::kOverwrite, data_or_null(w.qkv_bias));
  apply_lora(slices, layer, &LoraLayer::qkv, in, qkv);
  if (c.parts.qk_norm == QkNorm::kWhole) {
    TensorView q = qkv.column_range(0, c.q_columns());
    TensorView k = qkv.column_range(c.q_columns(), c.q_columns() + c.kv_columns());
    ops_.rms_norm(q, data_or_null(w.q_norm), c.norm_epsilon, q);
    ops_.rms_norm(k, data_or_null(w.k_norm), c.norm_epsilon, k);
  }
  ops_.rotate_and_store(qkv, rope_options(layer), sequence_slices_, kv.layer(layer));
  return qkv;
}

void Transformer::attention_block(int32_t layer,
                                  std::span<const BatchSlice> slices,
                                  const KvLayerView& kv,
                                  TensorView qkv,
                                  TensorView hidden) {
  const ModelConfig& c = config();
  const LayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
  TensorView attended =
      attended_.reshape(ops_.device(), ops_.activation_dtype(), hidden.rows, c.q_columns());
  AttentionOptions options{.num_heads = c.num_heads,
                           .scale = c.attention_scale,
                           .sliding_window = c.window(layer),
                           .soft_cap = c.attention_cap,
                           .sinks = data_or_null(w.sinks),
                           .precision = weights_->precision};
  ops_.attention(qkv, options, sequence_slices_, kv, attended);
  for (size_t i = 0; i < slices.size(); ++i) {
    const AttentionMass* mass = slices[i].mass;
    if (mass != nullptr && layer >= mass->first_layer)
      ops_.add_attention_mass(qkv, options, sequence_slices_, i, kv, mass->sums);
  }
  add_branch({*w.output, w.output_bias, &LoraLayer::output, w.attention_output_norm}, layer, slices,
             attended, hidden);
}

void Transformer::add_branch(const Branch& branch,
                             int32_t layer,
                             std::span<const BatchSlice> slices,
                             TensorView in,
                             TensorView hidden) {
  const float* norm = data_or_null(branch.norm);
  if (norm == nullptr && config().residual_scale == 1) {
    ops_.linear(branch.weights, in, hidden, Accumulate::kAdd, data_or_null(branch.bias));
    return apply_lora(slices, layer, branch.lora, in, hidden);
  }
  TensorView added = branch_.reshape(ops_.device(), hidden.dtype, hidden.rows, hidden.columns);
  ops_.linear(branch.weights, in, added, Accumulate::kOverwrite, data_or_null(branch.bias));
  apply_lora(slices, layer, branch.lora, in, added);
  if (norm != nullptr) ops_.rms_norm(added, norm, config().norm_epsilon, added);
  ops_.add_scaled(added, config().residual_scale, hidden);
}

TensorView Transformer::normed(TensorView in, const Tensor& norm, const WeightMatrix* next) {
  if (norm.rows() == 0) return in;
  TensorView out = normed_.reshape(ops_.device(), ops_.activation_dtype(), in.rows, in.columns);
  if (next != nullptr) ops_.expect_product(*next, out);
  ops_.rms_norm(in, data_or_null(norm), config().norm_epsilon, out);
  return out;
}

void Transformer::ffn_block(int32_t layer, std::span<const BatchSlice> slices, TensorView hidden) {
  const ModelConfig& c = config();
  const LayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
  DType dtype = ops_.activation_dtype();
  TensorView in = normed(hidden, w.ffn_norm, c.experts.count > 0 ? nullptr : w.gate_up.get());
  if (c.experts.count > 0) experts_.add(c, w, layer, slices, in, hidden);
  if (!w.gate_up) return;
  TensorView gate_up = gate_up_.reshape(ops_.device(), dtype, hidden.rows, 2 * c.ffn_dim);
  TensorView activated = activated_.reshape(ops_.device(), dtype, hidden.rows, c.ffn_dim);

  ops_.linear(*w.gate_up, in, gate_up, Accumulate::kOverwrite, data_or_null(w.gate_up_bias));
  apply_lora(slices, layer, &LoraLayer::gate_up, in, gate_up);
  if (!w.shared_gate) ops_.expect_product(*w.down, activated);
  ops_.gated_activation(gate_up, c.parts.activation, activated);
  if (w.shared_gate) {
    TensorView gates = shared_gates_.reshape(ops_.device(), DType::kF32, hidden.rows, 1);
    ops_.linear(*w.shared_gate, in, gates);
    ops_.gate_rows(gates, activated);
  }
  add_branch({*w.down, w.down_bias, &LoraLayer::down, w.ffn_output_norm}, layer, slices, activated,
             hidden);
}

void Transformer::output_layer(std::span<const BatchSlice> slices,
                               const KvCache& kv,
                               TensorView hidden) {
  const int32_t layer = config().num_layers - 1;
  TensorView all_qkv = store_kv(layer, slices, kv, hidden);
  int64_t rows = 0;
  for (const BatchSlice& slice : slices) rows += output_rows(slice);
  if (rows == 0) return;
  TensorView qkv = output_qkv_.reshape(ops_.device(), all_qkv.dtype, rows, all_qkv.columns);
  TensorView wanted = output_hidden_.reshape(ops_.device(), hidden.dtype, rows, hidden.columns);
  output_slices_.clear();
  for_each_output(slices, [&](const BatchSlice& slice, int64_t from, int64_t to) {
    const int32_t count = output_rows(slice);
    ops_.copy(all_qkv.row_range(from, from + count), qkv.row_range(to, to + count));
    ops_.copy(hidden.row_range(from, from + count), wanted.row_range(to, to + count));
    SequenceSlice last = slice.sequence.last_rows(count, to);
    if (slice.output_rows == 1) last.answer_begin = SequenceSlice::kAlone;
    output_slices_.push_back(
        {last, slice.adapter, BatchSlice::kAllRows, slice.mass, slice.base_rows_of_last(count)});
  });
  set_sequences(output_slices_, sequence_slices_);
  attention_block(layer, output_slices_, kv.layer(layer), qkv, wanted);
  ffn_block(layer, output_slices_, wanted);
  for_each_output(slices, [&](const BatchSlice& slice, int64_t from, int64_t to) {
    const int32_t count = output_rows(slice);
    ops_.copy(wanted.row_range(to, to + count), hidden.row_range(from, from + count));
  });
}

// Neighbouring slices of one adapter are corrected together.
void Transformer::apply_lora(std::span<const BatchSlice> slices,
                             int32_t layer,
                             LoraLinear LoraLayer::*which,
                             TensorView in,
                             TensorView out) {
  lora_rows_.clear();
  int64_t ranks = 0;
  for (const BatchSlice& slice : slices) {
    if (slice.adapter == nullptr) continue;
    const LoraLinear& lora = slice.adapter->layers[static_cast<size_t>(layer)].*which;
    if (!lora.down) continue;
    const int64_t begin = slice.sequence.first_row + slice.base_rows;
    const int64_t end = slice.sequence.first_row + slice.sequence.num_rows;
    if (begin == end) continue;
    ranks = std::max(ranks, lora.down->rows());
    if (!lora_rows_.empty() && lora_rows_.back().lora == &lora && lora_rows_.back().end == begin) {
      lora_rows_.back().end = end;
    } else {
      lora_rows_.push_back({begin, end, &lora});
    }
  }
  if (lora_rows_.empty()) return;
  TensorView low = low_rank_.reshape(ops_.device(), ops_.activation_dtype(), in.rows, ranks);
  ops_.add_lora(lora_rows_, in, low, out);
}

void Transformer::output_states(TensorView hidden, TensorView out) {
  ops_.copy(normed(hidden, weights_->output_norm, nullptr), out);
}

void Transformer::logits(TensorView hidden, TensorView out) {
  ops_.linear(weights_->output_matrix(), normed(hidden, weights_->output_norm, nullptr), out);
  const ModelConfig& c = config();
  if (c.logit_scale != 1 || c.logit_cap != 0) ops_.scale(out, c.logit_scale, c.logit_cap);
}

}  // namespace droidspeak
