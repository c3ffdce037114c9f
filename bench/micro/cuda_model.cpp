#include "cuda_model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>

#include "ops/cuda/quantized/strips.h"

namespace droidspeak::cuda {
namespace {

constexpr int32_t kRank = 16;

LoraLinear make_lora(Ops& ops,
                     const RandomWeights& values,
                     int64_t in_columns,
                     std::vector<int64_t> part_columns) {
  LoraLinear lora;
  int32_t ranks = 0;
  int64_t first = 0;
  for (int64_t columns : part_columns) {
    lora.parts.push_back({.up = values.matrix(ops, columns, kRank),
                          .first_rank = ranks,
                          .rank = kRank,
                          .first_column = static_cast<int32_t>(first)});
    ranks += kRank;
    first += columns;
  }
  lora.down = values.matrix(ops, ranks, in_columns);
  return lora;
}

}  // namespace

Model::Model(CudaDevice& device, Ops& ops, const Options& options)
    : shape_(options.shape),
      batch_(options.batch),
      context_(options.context),
      kv_(device,
          {.num_layers = shape_.layers,
           .num_kv_heads = shape_.kv_heads,
           .head_dim = shape_.head_dim,
           .dtype = DType::kBF16},
          kv_bytes(options.prompt)),
      norm_(device, DType::kF32, 1, shape_.dim),
      rope_(device, DType::kF32, std::max(max_positions(), options.prompt), shape_.head_dim) {
  fill_tables(device);
  const int64_t rows = ops.repeated_rows(batch_);
  auto make = [&](int64_t columns) { return Tensor(device, DType::kBF16, rows, columns); };
  hidden_ = make(shape_.dim);
  normed_ = make(shape_.dim);
  qkv_ = make(shape_.qkv_columns());
  attended_ = make(shape_.q_columns());
  gate_up_ = make(2 * shape_.ffn);
  activated_ = make(shape_.ffn);
  low_ = make(3 * kRank);
  logits_ = Tensor(device, DType::kF32, rows, shape_.vocab);
  const RandomWeights values(options.dtype, std::max(shape_.vocab, 2 * shape_.ffn) * shape_.dim);
  const RandomWeights corrections(DType::kBF16, 3 * kRank * std::max(shape_.ffn, shape_.dim));
  for (int32_t i = 0; i < shape_.layers; ++i) {
    Layer& layer = layers_.emplace_back();
    layer.qkv = values.matrix(ops, shape_.qkv_columns(), shape_.dim);
    layer.output = values.matrix(ops, shape_.dim, shape_.q_columns());
    if (shape_.experts == 0) {
      layer.gate_up = values.matrix(ops, 2 * shape_.ffn, shape_.dim);
      layer.down = values.matrix(ops, shape_.dim, shape_.ffn);
    }
    for (int32_t j = 0; j < options.num_adapters; ++j)
      layer.adapters.push_back(make_adapter(ops, corrections));
  }
  if (shape_.experts > 0) make_experts(ops, values);
  // Files of 8-bit floats leave the head alone.
  const DType head = options.dtype == DType::kFp8 ? DType::kBF16 : options.dtype;
  table_ = RandomWeights(head, shape_.vocab * shape_.dim).matrix(ops, shape_.vocab, shape_.dim);
  const int32_t blocks = std::max(batch_ * blocks_for(max_positions()), blocks_for(options.prompt));
  for (int32_t i = 0; i < blocks; ++i) blocks_.push_back(i);
}

// Numbers that keep rows as large as they are: products of zeros would be faster.
void Model::fill_tables(Device& device) {
  for (const Tensor* tensor : {&norm_, &rope_}) {
    const std::vector<float> values(tensor->bytes() / sizeof(float),
                                    tensor == &norm_ ? 1.0f : 0.7f);
    device.to_device(tensor->view().data, values.data(), tensor->bytes());
    device.synchronize();
  }
}

void Model::make_experts(Ops& ops, const RandomWeights& values) {
  router_ = RandomWeights(DType::kBF16, shape_.experts * shape_.dim)
                .matrix(ops, shape_.experts, shape_.dim);
  for (auto& experts : experts_) {
    for (int32_t i = 0; i < shape_.experts; ++i) {
      expert_matrices_.push_back(values.matrix(ops, 2 * shape_.ffn, shape_.dim));
      expert_matrices_.push_back(values.matrix(ops, shape_.dim, shape_.ffn));
      experts.push_back(
          {expert_matrices_[expert_matrices_.size() - 2].get(), expert_matrices_.back().get()});
    }
  }
}

// With experts it is that of one sequence.
double Model::bytes(int32_t batch) const {
  double total = static_cast<double>(table_->bytes());
  for (const Layer& layer : layers_) {
    for (const auto* matrix : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down})
      total += *matrix == nullptr ? 0 : static_cast<double>((*matrix)->bytes());
  }
  if (shape_.experts > 0)
    total += static_cast<double>(shape_.layers * shape_.experts_of_row) *
             static_cast<double>(expert_matrices_[0]->bytes() + expert_matrices_[1]->bytes());
  const double positions = static_cast<double>(batch) * context_;
  return total + positions * 4.0 * shape_.layers * shape_.kv_heads * shape_.head_dim;
}

Model::Plan Model::fixed_plan(int adapter, const Parts& parts) const {
  Work work{.rows = {}, .finish = {}, .parts = parts};
  for (int32_t i = 0; i < batch_; ++i) work.rows.push_back({i, adapter});
  return [work](int32_t) { return work; };
}

double Model::ms_of_step(Ops& ops, const Plan& plan) {
  // Steps that are seen for the first and second time do not count.
  for (int32_t i = 0; i < 2 * kSteps; ++i) step(ops, plan(i % kSteps), i % (kWarmUp + kSteps));
  double best = INFINITY;
  for (int32_t run = 0; run < 3; ++run) {
    std::vector<Work> works;
    for (int32_t i = 0; i < kSteps; ++i) works.push_back(plan(i));
    const auto begin = std::chrono::steady_clock::now();
    for (int32_t i = 0; i < kSteps; ++i) step(ops, works[static_cast<size_t>(i)], kWarmUp + i);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count() / kSteps);
  }
  return best;
}

double Model::weights_of_layers() const {
  double total = 0;
  for (const Layer& layer : layers_) {
    for (const auto* matrix : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down})
      total += static_cast<double>((*matrix)->rows()) * static_cast<double>((*matrix)->columns());
  }
  return total;
}

double Model::ms_of_prompt(Ops& ops, int32_t tokens) {
  auto make = [&](int64_t columns) { return Tensor(ops.device(), DType::kBF16, tokens, columns); };
  const Tensor hidden = make(shape_.dim), normed = make(shape_.dim),
               qkv = make(shape_.qkv_columns()), attended = make(shape_.q_columns()),
               gate_up = make(2 * shape_.ffn), activated = make(shape_.ffn);
  views_ = {hidden.view(),    normed.view(),          qkv.view(), attended.view(), gate_up.view(),
            activated.view(), TensorView(low_.view())};
  slices_ = {{0, tokens, 0, blocks_}};
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < tokens; ++i) prompt.push_back(i * 7 % static_cast<int32_t>(shape_.vocab));
  double best = INFINITY;
  for (int32_t run = 0; run < 4; ++run) {
    ops.embed(*table_, prompt, views_.hidden);
    ops.device().synchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (int32_t i = 0; i < shape_.layers; ++i)
      queue_layer(ops, layers_[static_cast<size_t>(i)], kv_.layer(i), {});
    ops.device().synchronize();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    if (run > 0) best = std::min(best, took.count());
  }
  return best;
}

size_t Model::kv_bytes(int32_t prompt) const {
  const KvLayout layout{.num_layers = shape_.layers,
                        .num_kv_heads = shape_.kv_heads,
                        .head_dim = shape_.head_dim,
                        .dtype = DType::kBF16};
  return layout.block_bytes() *
         static_cast<size_t>(std::max(batch_ * blocks_for(max_positions()), blocks_for(prompt)));
}

Model::Adapter Model::make_adapter(Ops& ops, const RandomWeights& values) const {
  const ModelShape& s = shape_;
  const int64_t kv_columns = int64_t{s.kv_heads} * s.head_dim;
  return {.qkv = make_lora(ops, values, s.dim, {s.q_columns(), kv_columns, kv_columns}),
          .output = make_lora(ops, values, s.q_columns(), {s.dim}),
          .gate_up = make_lora(ops, values, s.dim, {s.ffn, s.ffn}),
          .down = make_lora(ops, values, s.ffn, {s.dim})};
}

void Model::step(Ops& ops, const Work& work, int32_t number) {
  const auto blocks = static_cast<size_t>(blocks_for(max_positions()));
  slices_.clear();
  for (const Row& row : work.rows)
    slices_.push_back(
        {std::ssize(slices_), 1, context_ + number,
         std::span(blocks_).subspan(static_cast<size_t>(row.sequence) * blocks, blocks)});
  const int64_t padded = ops.repeated_rows(std::ssize(work.rows));
  auto rows_of = [&](const Tensor& tensor) { return tensor.view().row_range(0, padded); };
  views_ = {rows_of(hidden_),  rows_of(normed_),    rows_of(qkv_), rows_of(attended_),
            rows_of(gate_up_), rows_of(activated_), rows_of(low_)};
  std::vector<int32_t> tokens(static_cast<size_t>(padded), 1);
  ops.embed(*table_, tokens, views_.hidden);
  ops.repeat([&] {
    for (int32_t i = 0; i < shape_.layers; ++i)
      queue_layer(ops, layers_[static_cast<size_t>(i)], kv_.layer(i), work);
  });
  ops.rms_norm(views_.hidden, norm_.view().f32(), 1e-5f, views_.normed);
  if (!work.parts.logits) return ops.device().synchronize();
  TensorView logits = rows_of(logits_);
  ops.linear(*table_, views_.normed, logits);
  if (work.finish) return work.finish(logits);
  ops.argmax(logits, tokens);
}

// Rows of one adapter are corrected together.
void Model::correct(Ops& ops,
                    const Layer& layer,
                    LoraLinear Adapter::*which,
                    const Work& work,
                    TensorView in,
                    TensorView out) {
  lora_rows_.clear();
  for (int64_t i = 0; i < std::ssize(work.rows); ++i) {
    const int adapter = work.rows[static_cast<size_t>(i)].adapter;
    if (adapter == kNoAdapter) continue;
    const LoraLinear* lora = &(layer.adapters[static_cast<size_t>(adapter)].*which);
    if (!lora_rows_.empty() && lora_rows_.back().lora == lora && lora_rows_.back().end == i) {
      ++lora_rows_.back().end;
    } else {
      lora_rows_.push_back({i, i + 1, lora});
    }
  }
  if (!lora_rows_.empty()) ops.add_lora(lora_rows_, in, views_.low, out);
}

void Model::queue_layer(Ops& ops, const Layer& layer, const KvLayerView& kv, const Work& work) {
  const RopeOptions rope{.num_heads = shape_.heads,
                         .num_kv_heads = shape_.kv_heads,
                         .head_dim = shape_.head_dim,
                         .rotary_dim = shape_.head_dim,
                         .table = rope_.view().f32(),
                         .q_norm = nullptr,
                         .k_norm = nullptr,
                         .norm_epsilon = 1e-5f};
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
  const Parts& parts = work.parts;
  const Views& v = views_;
  auto norm = [&](const WeightMatrix* next) {
    if (next != nullptr) ops.expect_product(*next, v.normed);
    if (parts.norms) ops.rms_norm(v.hidden, norm_.view().f32(), 1e-5f, v.normed);
  };
  norm(layer.qkv.get());
  if (parts.small_products) ops.linear(*layer.qkv, v.normed, v.qkv);
  correct(ops, layer, &Adapter::qkv, work, v.normed, v.qkv);
  if (parts.rotation) ops.rotate_and_store(v.qkv, rope, slices_, kv);
  if (parts.attention) ops.attention(v.qkv, {shape_.heads, scale, 0}, slices_, kv, v.attended);
  if (parts.small_products) ops.linear(*layer.output, v.attended, v.hidden, Accumulate::kAdd);
  correct(ops, layer, &Adapter::output, work, v.attended, v.hidden);
  norm(layer.gate_up.get());
  queue_ffn(ops, layer, work);
}

void Model::queue_ffn(Ops& ops, const Layer& layer, const Work& work) {
  const Parts& parts = work.parts;
  const Views& v = views_;
  if (shape_.experts > 0) {
    const auto which = static_cast<size_t>(&layer - layers_.data()) % kExpertLayers;
    const ExpertChoice choice{shape_.experts_of_row, ExpertChoice::Weights::kOfChosen};
    if (parts.large_products)
      check(ops.add_experts({router_.get(), experts_[which], choice, Activation::kSilu}, v.normed,
                            v.hidden),
            "experts of few rows");
    return;
  }
  if (parts.large_products) ops.linear(*layer.gate_up, v.normed, v.gate_up);
  correct(ops, layer, &Adapter::gate_up, work, v.normed, v.gate_up);
  ops.expect_product(*layer.down, v.activated);
  if (parts.activation) ops.gated_activation(v.gate_up, Activation::kSilu, v.activated);
  if (parts.large_products) ops.linear(*layer.down, v.activated, v.hidden, Accumulate::kAdd);
  correct(ops, layer, &Adapter::down, work, v.activated, v.hidden);
}

}  // namespace droidspeak::cuda
