#include "profiler/context_trial.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"

namespace droidspeak {
namespace {

// All blocks of one layer's K or V (or of their scales) as rows.
TensorView block_rows(void* data, DType dtype, int32_t num_blocks, int64_t elements) {
  return {data, dtype, num_blocks, elements, elements};
}

}  // namespace

ContextTrial::ContextTrial(const ModelPair& pair,
                           ContextScratch& scratch,
                           std::span<const int32_t> context)
    : pair_(pair), scratch_(scratch), context_(context.begin(), context.end()) {
  check(!context.empty() && context.size() % kBlockTokens == 0, "a context of whole blocks");
  reserve(sender_);
  reserve(receiver_);
}

void ContextTrial::reserve(BlockTable& table) {
  if (table.reserve(pair_.kv.pool(), num_tokens())) return;
  throw Failure(ErrorCode::kExhausted,
                fmt::format("a context of {} tokens: K/V memory has to hold it five times and has "
                            "room for {} more tokens (raise --kv-memory)",
                            num_tokens(), pair_.kv.pool().num_free() * kBlockTokens));
}

void ContextTrial::run_layers(const Variant& variant,
                              LayerRange range,
                              const BlockTable& table,
                              TensorView hidden) {
  int32_t chunk = pair_.ops.prefill_rows();
  for (int32_t layer = range.begin; layer < range.end; ++layer) {
    for (int32_t first = 0; first < num_tokens(); first += chunk) {
      int32_t rows = std::min(chunk, num_tokens() - first);
      BatchSlice slice{
          {0, rows, first, table.blocks(), {}, num_tokens()}, variant.adapter.get(), 0};
      variant.transformer->forward_layers({layer, layer + 1}, std::span(&slice, 1), pair_.kv,
                                          hidden.row_range(first, first + rows));
    }
  }
  layer_tokens_ += int64_t{num_tokens()} * range.size();
}

void ContextTrial::keep_input(int32_t layer, TensorView hidden) {
  pair_.ops.copy(hidden, scratch_.inputs[layer].reshape(pair_.ops.device(), hidden.dtype,
                                                        hidden.rows, hidden.columns));
  captured_.insert(layer);
}

void ContextTrial::read_both(std::span<const int32_t> captured, const LayerVisit& visit) {
  Device& device = pair_.ops.device();
  DType dtype = pair_.ops.activation_dtype();
  int64_t d_model = pair_.receiver->transformer->config().d_model;
  TensorView sender = scratch_.sender.reshape(device, dtype, num_tokens(), d_model);
  TensorView receiver = scratch_.receiver.reshape(device, dtype, num_tokens(), d_model);
  pair_.sender->transformer->embed(context_, sender);
  pair_.receiver->transformer->embed(context_, receiver);
  for (int32_t layer = 0; layer < pair_.num_layers(); ++layer) {
    if (std::ranges::find(captured, layer) != captured.end()) keep_input(layer, sender);
    if (visit.inputs) visit.inputs(layer, sender, receiver);
    run_layers(*pair_.sender, {layer, layer + 1}, sender_, sender);
    run_layers(*pair_.receiver, {layer, layer + 1}, receiver_, receiver);
    if (visit.outputs) visit.outputs(layer, sender_, receiver_);
  }
}

void ContextTrial::read_sender(std::span<const int32_t> captured, int32_t receiver_layers) {
  TensorView hidden =
      scratch_.sender.reshape(pair_.ops.device(), pair_.ops.activation_dtype(), num_tokens(),
                              pair_.receiver->transformer->config().d_model);
  if (receiver_layers > 0) {
    pair_.receiver->transformer->embed(context_, hidden);
    run_layers(*pair_.receiver, {0, receiver_layers}, receiver_, hidden);
  }
  pair_.sender->transformer->embed(context_, hidden);
  for (int32_t layer = 0; layer < pair_.num_layers(); ++layer) {
    if (std::ranges::find(captured, layer) != captured.end()) keep_input(layer, hidden);
    run_layers(*pair_.sender, {layer, layer + 1}, sender_, hidden);
  }
}

void ContextTrial::copy_layer(int32_t layer,
                              std::span<const int32_t> from,
                              std::span<const int32_t> to) {
  KvLayerView kv = pair_.kv.layer(layer);
  int32_t blocks = pair_.kv.pool().num_blocks();
  int64_t slots = int64_t{kv.num_kv_heads} * kBlockTokens;
  std::vector<TensorView> parts{block_rows(kv.k, kv.dtype, blocks, slots * kv.head_dim),
                                block_rows(kv.v, kv.dtype, blocks, slots * kv.head_dim)};
  if (kv.k_scale != nullptr) {
    parts.push_back(block_rows(kv.k_scale, DType::kF32, blocks, slots));
    parts.push_back(block_rows(kv.v_scale, DType::kF32, blocks, slots));
  }
  for (const TensorView& part : parts) {
    for (size_t i = 0; i < to.size(); ++i)
      pair_.ops.copy(part.row_range(from[i], from[i] + 1), part.row_range(to[i], to[i] + 1));
  }
}

void ContextTrial::translate(const Translator& translator) {
  reserve(translated_);
  for (int32_t layer = 0; layer < pair_.num_layers(); ++layer) {
    copy_layer(layer, sender_.blocks(), translated_.blocks());
    const LowRankMap* map = translator.kv(layer);
    if (map == nullptr) continue;
    SequenceSlice range{0, num_tokens(), 0, translated_.blocks()};
    pair_.ops.translate_kv(*map, pair_.receiver->transformer->rope_options(layer), range,
                           pair_.kv.layer(layer));
  }
}

void ContextTrial::recompute(LayerRange range, const Translator* translator) {
  check(captured_.contains(range.begin), "E was kept at the transition layer");
  BlockTable& table = recomputed_[{translator != nullptr, range.begin}];
  reserve(table);
  TensorView kept = scratch_.inputs.at(range.begin).view();
  TensorView hidden =
      scratch_.sender.reshape(pair_.ops.device(), kept.dtype, kept.rows, kept.columns);
  pair_.ops.copy(kept, hidden);
  const LowRankMap* map = translator == nullptr ? nullptr : translator->input(range.begin);
  if (map != nullptr) pair_.ops.translate_rows(*map, hidden);
  run_layers(*pair_.receiver, range, table, hidden);
}

const BlockTable& ContextTrial::copy_for_look(const TriedPlan& tried) {
  ContextMixture layers = mixture(tried.layers());
  BlockTable& table = looked_at_[tried];
  reserve(table);
  for (int32_t layer = 0; layer < pair_.num_layers(); ++layer)
    copy_layer(layer, layers[static_cast<size_t>(layer)], table.blocks());
  return table;
}

ContextMixture ContextTrial::mixture(const TriedPlan& tried) const {
  const ReusePlan& plan = tried.plan;
  if (plan.look_permille > 0)
    return ContextMixture(static_cast<size_t>(pair_.num_layers()), looked_at_.at(tried).blocks());
  const BlockTable& reused = tried.translated ? translated_ : sender_;
  const BlockTable& recomputed =
      plan.needs_layer_input() ? recomputed_.at({tried.translated, plan.b}) : receiver_;
  ContextMixture layers;
  for (int32_t layer = 0; layer < pair_.num_layers(); ++layer) {
    const BlockTable& table = layer < plan.a           ? receiver_
                              : plan.recomputes(layer) ? recomputed
                                                       : reused;
    layers.push_back(table.blocks());
  }
  return layers;
}

ContextMixture ContextTrial::full() const {
  return ContextMixture(static_cast<size_t>(pair_.num_layers()), receiver_.blocks());
}

ContextMixture ContextTrial::only_reused(int32_t layer) const {
  ContextMixture layers = full();
  layers[static_cast<size_t>(layer)] = sender_.blocks();
  return layers;
}

}  // namespace droidspeak
