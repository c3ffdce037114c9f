#include "smollm2_shape.h"

#include <cmath>
#include <cstring>
#include <random>

#include "bench_clock.h"
#include "tensor/half.h"

namespace droidspeak::bench {
namespace {

constexpr int32_t kQkv =
    (SmolLm2Shape::kHeads + 2 * SmolLm2Shape::kKvHeads) * SmolLm2Shape::kHeadDim;
constexpr int32_t kMaxSequences = 8;

std::unique_ptr<WeightMatrix> random_weights(Ops& ops, DType dtype, int64_t rows, int64_t columns) {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(bytes_of(dtype, rows * columns));
  const uint16_t scale = f16_from_float(0.004f);
  const uint16_t minimum = f16_from_float(-0.03f);
  if (is_block_format(dtype)) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    const auto step = static_cast<size_t>(traits(dtype).block_bytes);
    for (size_t at = 0; at < bytes.size(); at += step) {
      std::memcpy(bytes.data() + at, &scale, 2);
      if (dtype == DType::kQ4_1) std::memcpy(bytes.data() + at + 2, &minimum, 2);
    }
  } else if (dtype == DType::kF32) {
    const float value = 0.01f;
    for (size_t at = 0; at < bytes.size(); at += 4) std::memcpy(bytes.data() + at, &value, 4);
  } else {
    for (size_t at = 0; at < bytes.size(); at += 2) std::memcpy(bytes.data() + at, &scale, 2);
  }
  const MatrixPart part{dtype, rows, columns, bytes, {}};
  return ops.pack({&part, 1}, Precision::kFast);
}

KvLayout layout_of(DType dtype) {
  return {.num_layers = SmolLm2Shape::kLayers,
          .num_kv_heads = SmolLm2Shape::kKvHeads,
          .head_dim = SmolLm2Shape::kHeadDim,
          .dtype = dtype};
}

}  // namespace

SmolLm2Shape::SmolLm2Shape(Ops& ops, int num_threads, DType weights, DType cache)
    : ops_(ops),
      num_threads_(num_threads),
      cache_(ops.device(),
             layout_of(cache),
             layout_of(cache).block_bytes() * static_cast<size_t>(kMaxTokens / kBlockTokens + 64)),
      tables_(kMaxSequences),
      norm_(kDim, 1.0f) {
  for (int32_t i = 0; i < kLayers; ++i) {
    layers_.push_back({random_weights(ops, weights, kQkv, kDim),
                       random_weights(ops, weights, kDim, kHeads * kHeadDim),
                       random_weights(ops, weights, 2 * kHidden, kDim),
                       random_weights(ops, weights, kDim, kHidden)});
  }
  const bool is_quantized = is_block_format(weights);
  table_ = random_weights(ops, is_quantized ? DType::kQ8_0 : weights, kVocabulary, kDim);
  for (int32_t p = 0; p < kMaxTokens; ++p) {
    for (int i = 0; i < kHeadDim; ++i) {
      const double angle = p * std::pow(1e5, -2.0 * (i % 32) / kHeadDim);
      rope_.push_back(static_cast<float>(i < 32 ? std::cos(angle) : std::sin(angle)));
    }
  }
}

void SmolLm2Shape::run_layer(int32_t index, std::span<const SequenceSlice> slices, int64_t rows) {
  const Layer& layer = layers_[static_cast<size_t>(index)];
  Device& device = ops_.device();
  const TensorView x = x_.view();
  const TensorView normed = normed_.reshape(device, DType::kF32, rows, kDim);
  const TensorView qkv = qkv_.reshape(device, DType::kF32, rows, kQkv);
  const TensorView attended = attended_.reshape(device, DType::kF32, rows, kHeads * kHeadDim);
  const TensorView gate_up = gate_up_.reshape(device, DType::kF32, rows, 2 * kHidden);
  const TensorView hidden = hidden_.reshape(device, DType::kF32, rows, kHidden);
  const KvLayerView kv = cache_.layer(index);
  BenchClock watch(num_threads_);
  auto count = [&](Phase phase) { phases_[phase] += watch.restart(); };
  ops_.rms_norm(x, norm_.data(), 1e-5f, normed);
  count(kElementwise);
  ops_.linear(*layer.qkv, normed, qkv);
  count(kLinear);
  ops_.rotate_and_store(qkv,
                        {.num_heads = kHeads,
                         .num_kv_heads = kKvHeads,
                         .head_dim = kHeadDim,
                         .rotary_dim = kHeadDim,
                         .table = rope_.data()},
                        slices, kv);
  count(kElementwise);
  ops_.attention(qkv, {.num_heads = kHeads, .scale = 0.125f, .precision = Precision::kFast}, slices,
                 kv, attended);
  count(kAttention);
  ops_.linear(*layer.out, attended, x, Accumulate::kAdd);
  count(kLinear);
  ops_.rms_norm(x, norm_.data(), 1e-5f, normed);
  count(kElementwise);
  ops_.linear(*layer.gate_up, normed, gate_up);
  count(kLinear);
  ops_.gated_activation(gate_up, Activation::kSilu, hidden);
  count(kElementwise);
  ops_.linear(*layer.down, hidden, x, Accumulate::kAdd);
  count(kLinear);
}

double SmolLm2Shape::step(int32_t num_sequences, int32_t position, int32_t rows) {
  BenchClock total(num_threads_);
  phases_ = {};
  std::vector<SequenceSlice> slices;
  const int64_t all_rows = static_cast<int64_t>(num_sequences) * rows;
  for (int32_t i = 0; i < num_sequences; ++i) {
    BlockTable& table = tables_[static_cast<size_t>(i)];
    check(table.reserve(cache_.pool(), position + rows), "room for the benchmark's sequences");
    slices.push_back({static_cast<int64_t>(i) * rows, rows, position, table.blocks()});
  }
  BenchClock watch(num_threads_);
  const TensorView x = x_.reshape(ops_.device(), DType::kF32, all_rows, kDim);
  std::vector<int32_t> tokens(static_cast<size_t>(all_rows));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>(i * 7919 % kVocabulary);
  ops_.embed(*table_, tokens, x);
  phases_[kElementwise] += watch.restart();
  for (int32_t i = 0; i < kLayers; ++i) run_layer(i, slices, all_rows);
  watch.restart();
  const TensorView last = normed_.reshape(ops_.device(), DType::kF32, num_sequences, kDim);
  for (const SequenceSlice& slice : slices) {
    const int64_t index = &slice - slices.data();
    const int64_t row = slice.first_row + rows - 1;
    ops_.rms_norm(x.row_range(row, row + 1), norm_.data(), 1e-5f, last.row_range(index, index + 1));
  }
  ops_.linear(*table_, last,
              logits_.reshape(ops_.device(), DType::kF32, num_sequences, kVocabulary));
  phases_[kHead] += watch.ms();
  return total.ms();
}

}  // namespace droidspeak::bench
