#include "sharing/context_reuse.h"

#include <algorithm>
#include <exception>

#include "base/check.h"
#include "model/activation.h"

namespace droidspeak {
namespace {

std::vector<LayerRange> recomputed_ranges(const ReusePlan& plan) {
  std::vector<LayerRange> ranges;
  if (plan.a > 0) ranges.push_back({0, plan.a});
  if (plan.b == plan.c) return ranges;
  // Without reused layers in front, the receiver's own hidden state flows on.
  if (plan.a > 0 && plan.a == plan.b) {
    ranges.back().end = plan.c;
  } else {
    ranges.push_back({plan.b, plan.c});
  }
  return ranges;
}

}  // namespace

ContextReuse::ContextReuse(const Parts& parts, ReuseJob job)
    : ops_(parts.ops), kv_(parts.kv), job_(std::move(job)) {
  int32_t num_layers = kv_.layout().num_layers;
  check(job_.context.size() % kBlockTokens == 0, "context is a whole number of blocks");
  const size_t num_blocks = job_.context.size() / kBlockTokens;
  LoadJob& load = job_.load;
  check(load.stored.num_blocks() >= num_blocks, "a key for every block");
  check(load.blocks.size() >= num_blocks, "the block table covers the context");
  load.stored.cut(num_blocks);
  load.blocks.resize(num_blocks);
  load.input_bytes = bytes_of(ops_.activation_dtype(),
                              int64_t{kBlockTokens} * job_.receiver->transformer->config().d_model);
  if (load.stored.own_keys.empty()) recompute_ranges_ = recomputed_ranges(load.stored.plan);
  check(recompute_ranges_.empty() || !is_activated(*job_.receiver),
        "an activated LoRA recomputes nothing of a context");
  is_prepared_.assign(static_cast<size_t>(num_layers), false);
  load_ = std::make_shared<ContextLoad>(ops_.device(), kv_, parts.store, std::move(load));
  parts.threads.start([load = load_] { load->run(); });
}

ContextReuse::~ContextReuse() {
  load_->stop();
  try {
    ops_.device().synchronize();  // E is copied out of memory that is given back now
  } catch (const std::exception&) {
    // A broken device says so at the next thing it is asked for.
  }
}

int32_t ContextReuse::recomputable_tokens() const {
  if (is_recomputed()) return 0;
  int32_t missing = static_cast<int32_t>(job_.context.size()) - recomputed_tokens_;
  if (!stored().plan.needs_layer_input()) return missing;
  int32_t arrived = std::min(missing, load_->input_blocks() * kBlockTokens - recomputed_tokens_);
  // Smaller chunks use the weights less well.
  bool is_worthwhile = arrived >= std::min(missing, ops_.prefill_rows()) || !load_->is_arriving();
  return is_worthwhile ? arrived : 0;
}

int32_t ContextReuse::recompute_chunk(int32_t max_tokens) {
  int32_t limit = std::max(kBlockTokens, max_tokens / kBlockTokens * kBlockTokens);
  int32_t num_tokens = std::min(limit, recomputable_tokens());
  if (num_tokens == 0) return 0;
  Transformer& transformer = *job_.receiver->transformer;
  int32_t begin = recomputed_tokens_;
  TensorView hidden = hidden_.reshape(ops_.device(), ops_.activation_dtype(), num_tokens,
                                      transformer.config().d_model);
  BatchSlice slice{{0, num_tokens, begin, load_->job().blocks}, job_.receiver->adapter.get()};
  for (const LayerRange& range : recompute_ranges_) {
    if (range.begin == 0) {
      transformer.embed(std::span(job_.context)
                            .subspan(static_cast<size_t>(begin), static_cast<size_t>(num_tokens)),
                        hidden);
    } else {
      copy_inputs(begin, hidden);
      const LowRankMap* map = job_.translator ? job_.translator->input(range.begin) : nullptr;
      if (map != nullptr) ops_.translate_rows(*map, hidden);
    }
    transformer.forward_to_kv(range, std::span(&slice, 1), kv_, hidden);
  }
  recomputed_tokens_ += num_tokens;
  return num_tokens;
}

void ContextReuse::copy_inputs(int32_t begin, TensorView hidden) {
  for (int64_t row = 0; row < hidden.rows; row += kBlockTokens) {
    TensorView rows = hidden.row_range(row, row + kBlockTokens);
    std::span<const std::byte> bytes =
        load_->input((begin + static_cast<int32_t>(row)) / kBlockTokens);
    check(bytes.size() == bytes_of(rows.dtype, rows.rows * rows.columns),
          "stored E has the receiver's shape");
    ops_.device().to_device(rows.data, bytes.data(), bytes.size());
  }
}

bool ContextReuse::is_layer_ready(int32_t layer) const {
  if (stored().recomputes(layer)) return is_recomputed();
  return is_cut_ || !load_->layer_events(layer).empty();
}

// Layers that are translated already are so as far as the context goes now.
void ContextReuse::cut_to_whole_blocks() {
  load_->stop();  // copies that were begun have ended
  is_cut_ = true;
  const size_t whole = load_->whole_blocks();
  job_.context.resize(whole * kBlockTokens);
  recomputed_tokens_ = std::min(recomputed_tokens_, static_cast<int32_t>(job_.context.size()));
}

void ContextReuse::prepare_layer(int32_t layer) {
  auto index = static_cast<size_t>(layer);
  if (stored().recomputes(layer) || is_prepared_[index]) return;
  if (!is_cut_) {
    const auto events = load_->layer_events(layer);
    check(!events.empty(), "a layer is prepared once it is ready");
    for (const auto& event : events) ops_.device().wait(*event);
  }
  const LowRankMap* map = job_.translator ? job_.translator->kv(layer) : nullptr;
  auto from_sender = static_cast<int32_t>(
      std::min(job_.context.size(), stored().sender_keys.size() * kBlockTokens));
  if (map != nullptr && from_sender > 0 && !stored().plan.recomputes(layer)) {
    SequenceSlice range{0, from_sender, 0, load_->job().blocks};
    ops_.translate_kv(*map, job_.receiver->transformer->rope_options(layer), range,
                      kv_.layer(layer));
  }
  is_prepared_[index] = true;
}

bool ContextReuse::wait_layer(int32_t layer) {
  check(is_recomputed(), "the suffix follows the recomputed layers");
  while (!is_layer_ready(layer)) {
    if (failure()) return false;
    wait_for_progress();
  }
  prepare_layer(layer);
  return true;
}

void ContextReuse::wait_for_progress() {
  load_->wait_past(seen_progress_);
  seen_progress_ = load_->progress();
}

}  // namespace droidspeak
