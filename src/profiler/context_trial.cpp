#include "profiler/context_trial.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"

namespace droidspeak {
namespace {

constexpr int32_t kChunkTokens = 512;

}  // namespace

ContextTrial::ContextTrial(const ModelPair& pair, std::span<const int32_t> context)
    : pair_(pair), context_(context.begin(), context.end()) {
  check(!context.empty() && context.size() % kBlockTokens == 0, "a context of whole blocks");
  reserve(sender_);
  reserve(receiver_);
}

void ContextTrial::reserve(BlockTable& table) {
  if (table.reserve(pair_.kv.pool(), num_tokens())) return;
  throw Failure(ErrorCode::kExhausted,
                fmt::format("a context of {} tokens: K/V memory has to hold it four times and has "
                            "room for {} more tokens (raise --kv-memory)",
                            num_tokens(), pair_.kv.pool().num_free() * kBlockTokens));
}

void ContextTrial::run_layers(const Variant& variant,
                              LayerRange range,
                              const BlockTable& table,
                              TensorView hidden) {
  for (int32_t layer = range.begin; layer < range.end; ++layer) {
    for (int32_t first = 0; first < num_tokens(); first += kChunkTokens) {
      int32_t rows = std::min(kChunkTokens, num_tokens() - first);
      BatchSlice slice{{0, rows, first, table.blocks()}, variant.adapter.get()};
      variant.transformer->forward_layers({layer, layer + 1}, std::span(&slice, 1), pair_.kv,
                                          hidden.row_range(first, first + rows));
    }
  }
  layer_tokens_ += int64_t{num_tokens()} * range.size();
}

void ContextTrial::keep_input(int32_t layer, TensorView hidden) {
  Tensor kept(pair_.ops.device(), hidden.dtype, hidden.rows, hidden.columns);
  pair_.ops.copy(hidden, kept.view());
  inputs_[layer] = std::move(kept);
}

void ContextTrial::read_both(std::span<const int32_t> captured, const LayerVisit& visit) {
  Device& device = pair_.ops.device();
  DType dtype = pair_.ops.activation_dtype();
  int64_t d_model = pair_.receiver->transformer->config().d_model;
  Tensor sender(device, dtype, num_tokens(), d_model);
  Tensor receiver(device, dtype, num_tokens(), d_model);
  pair_.sender->transformer->embed(context_, sender.view());
  pair_.receiver->transformer->embed(context_, receiver.view());
  for (int32_t layer = 0; layer < pair_.num_layers(); ++layer) {
    if (std::ranges::find(captured, layer) != captured.end()) keep_input(layer, sender.view());
    if (visit.inputs) visit.inputs(layer, sender.view(), receiver.view());
    run_layers(*pair_.sender, {layer, layer + 1}, sender_, sender.view());
    run_layers(*pair_.receiver, {layer, layer + 1}, receiver_, receiver.view());
    if (visit.outputs) visit.outputs(layer, sender_, receiver_);
  }
}

void ContextTrial::read_sender(std::span<const int32_t> captured, int32_t receiver_layers) {
  Tensor hidden(pair_.ops.device(), pair_.ops.activation_dtype(), num_tokens(),
                pair_.receiver->transformer->config().d_model);
  if (receiver_layers > 0) {
    pair_.receiver->transformer->embed(context_, hidden.view());
    run_layers(*pair_.receiver, {0, receiver_layers}, receiver_, hidden.view());
  }
  pair_.sender->transformer->embed(context_, hidden.view());
  for (int32_t layer = 0; layer < pair_.num_layers(); ++layer) {
    if (std::ranges::find(captured, layer) != captured.end()) keep_input(layer, hidden.view());
    run_layers(*pair_.sender, {layer, layer + 1}, sender_, hidden.view());
  }
}

void ContextTrial::translate(const Translator& translator) {
  reserve(translated_);
  auto lane = pair_.ops.device().make_copy_lane();
  std::vector<std::byte> bytes(pair_.kv.layout().layer_bytes());
  pair_.ops.device().synchronize();
  for (int32_t layer = 0; layer < pair_.num_layers(); ++layer) {
    for (size_t i = 0; i < translated_.blocks().size(); ++i) {
      pair_.kv.save(*lane, layer, sender_.blocks()[i], bytes);
      lane->synchronize();
      pair_.kv.load(*lane, layer, translated_.blocks()[i], bytes);
      lane->synchronize();
    }
    const LowRankMap* map = translator.kv(layer);
    if (map == nullptr) continue;
    SequenceSlice range{0, num_tokens(), 0, translated_.blocks()};
    pair_.ops.translate_kv(*map, pair_.receiver->transformer->rope_options(layer), range,
                           pair_.kv.layer(layer));
  }
}

void ContextTrial::recompute(LayerRange range, const Translator* translator) {
  reserve(recomputed_);
  auto found = inputs_.find(range.begin);
  check(found != inputs_.end(), "E was kept at the transition layer");
  TensorView kept = found->second.view();
  Tensor hidden(pair_.ops.device(), kept.dtype, kept.rows, kept.columns);
  pair_.ops.copy(kept, hidden.view());
  const LowRankMap* map = translator == nullptr ? nullptr : translator->input(range.begin);
  if (map != nullptr) pair_.ops.translate_rows(*map, hidden.view());
  run_layers(*pair_.receiver, range, recomputed_, hidden.view());
}

ContextMixture ContextTrial::mixture(const TriedPlan& tried) const {
  const ReusePlan& plan = tried.plan;
  const BlockTable& reused = tried.translated ? translated_ : sender_;
  const BlockTable& recomputed = plan.needs_layer_input() ? recomputed_ : receiver_;
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
