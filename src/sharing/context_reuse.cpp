#include "sharing/context_reuse.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"

namespace droidspeak {

// What transfer thread and compute thread share. E rows wait in host memory until their chunk is
// recomputed; K/V goes straight to its blocks.
struct ContextReuse::Loading {
  std::mutex mutex;
  std::condition_variable changed;
  int32_t loaded_input_blocks = 0;
  std::vector<bool> is_layer_loaded;
  std::vector<std::unique_ptr<Event>> layer_events;
  size_t loaded_layers = 0;
  std::string failure;
  bool is_stopping = false;
  double load_ms = 0;
  uint64_t loaded_bytes = 0;
  Tier slowest_tier = Tier::kHost;
  std::vector<PinnedEntry> inputs;  // E of the transition layer, one entry per block
  std::unique_ptr<CopyLane> lane;
  std::thread thread;

  void note_entry(const PinnedEntry& entry) {
    loaded_bytes += entry.bytes().size();
    if (entry.tier() == Tier::kDisk) slowest_tier = Tier::kDisk;
  }
};

ContextReuse::ContextReuse(Ops& ops, KvCache& kv, CacheStore& store, ReuseJob job)
    : ops_(ops),
      kv_(kv),
      store_(store),
      job_(std::move(job)),
      loading_(std::make_unique<Loading>()) {
  int32_t num_layers = kv.layout().num_layers;
  check(job_.context.size() % kBlockTokens == 0, "context is a whole number of blocks");
  check(job_.sender_keys.size() * kBlockTokens >= job_.context.size(), "a key for every block");
  check(job_.blocks.size() * kBlockTokens >= job_.context.size(),
        "the block table covers the context");
  if (job_.plan.a > 0) recompute_ranges_.push_back({0, job_.plan.a});
  if (job_.plan.b < job_.plan.c) {
    // Without reused layers in front, the receiver's own hidden state flows on.
    if (!recompute_ranges_.empty() && job_.plan.a == job_.plan.b) {
      recompute_ranges_.back().end = job_.plan.c;
    } else {
      recompute_ranges_.push_back({job_.plan.b, job_.plan.c});
    }
  }
  load_order_ = job_.plan.reused_layers(num_layers);
  loading_->is_layer_loaded.assign(static_cast<size_t>(num_layers), false);
  loading_->layer_events.resize(static_cast<size_t>(num_layers));
  is_translated_.assign(static_cast<size_t>(num_layers), false);
  loading_->lane = ops.device().make_copy_lane();
  loading_->thread = std::thread([this] { load_all(); });
}

ContextReuse::~ContextReuse() {
  {
    std::lock_guard lock(loading_->mutex);
    loading_->is_stopping = true;
  }
  loading_->thread.join();
  loading_->lane->synchronize();
}

void ContextReuse::load_all() {
  Stopwatch watch;
  Loading& shared = *loading_;
  size_t num_blocks = job_.context.size() / kBlockTokens;
  auto fetch = [&](size_t block, EntryId id) -> std::optional<PinnedEntry> {
    auto entry = store_.fetch(job_.sender_keys[block], id);
    std::lock_guard lock(shared.mutex);
    if (shared.is_stopping) return std::nullopt;
    if (!entry) {
      shared.failure = fmt::format("block {} of layer {} is missing or damaged", block, id.layer);
      shared.changed.notify_all();
      return std::nullopt;
    }
    shared.note_entry(*entry);
    return entry;
  };
  auto load_inputs = [&] {
    for (size_t block = 0; block < num_blocks; ++block) {
      auto entry = fetch(block, {EntryKind::kLayerInput, job_.plan.b});
      if (!entry) return false;
      std::lock_guard lock(shared.mutex);
      shared.inputs.push_back(std::move(*entry));
      ++shared.loaded_input_blocks;
      shared.changed.notify_all();
    }
    return true;
  };
  auto load_layer = [&](int32_t layer) {
    std::vector<PinnedEntry> pins;  // until the copies are done
    for (size_t block = 0; block < num_blocks; ++block) {
      auto entry = fetch(block, {EntryKind::kKeyValue, layer});
      if (!entry) return false;
      kv_.load(*shared.lane, layer, job_.blocks[block], entry->bytes());
      pins.push_back(std::move(*entry));
    }
    auto event = shared.lane->record();
    if (ops_.device().kind() != DeviceKind::kCpu) shared.lane->synchronize();
    std::lock_guard lock(shared.mutex);
    shared.layer_events[static_cast<size_t>(layer)] = std::move(event);
    shared.is_layer_loaded[static_cast<size_t>(layer)] = true;
    ++shared.loaded_layers;
    shared.load_ms = watch.ms();
    shared.changed.notify_all();
    return true;
  };
  if (job_.plan.needs_layer_input() && !load_inputs()) return;
  for (int32_t layer : load_order_) {
    if (!load_layer(layer)) return;
  }
  std::lock_guard lock(shared.mutex);
  shared.load_ms = watch.ms();
}

int32_t ContextReuse::recompute_chunk(int32_t max_tokens) {
  if (is_recomputed()) return 0;
  Stopwatch watch;
  Transformer& transformer = *job_.receiver->transformer;
  int32_t begin = recomputed_tokens_;
  int32_t limit = std::max(kBlockTokens, max_tokens / kBlockTokens * kBlockTokens);
  int32_t end = std::min(begin + limit, static_cast<int32_t>(job_.context.size()));
  TensorView hidden = hidden_.reshape(ops_.device(), ops_.activation_dtype(), end - begin,
                                      transformer.config().d_model);
  BatchSlice slice{{0, end - begin, begin, job_.blocks}, job_.receiver->adapter.get()};
  for (const LayerRange& range : recompute_ranges_) {
    if (range.begin == 0) {
      transformer.embed(std::span(job_.context)
                            .subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                        hidden);
    } else {
      std::unique_lock lock(loading_->mutex);
      loading_->changed.wait(lock, [&] {
        return loading_->loaded_input_blocks * kBlockTokens >= end || !loading_->failure.empty();
      });
      if (!loading_->failure.empty()) return 0;
      for (int32_t block = begin / kBlockTokens; block * kBlockTokens < end; ++block) {
        TensorView rows =
            hidden.row_range(block * kBlockTokens - begin, (block + 1) * kBlockTokens - begin);
        std::span<const std::byte> bytes = loading_->inputs[static_cast<size_t>(block)].bytes();
        check(bytes.size() == bytes_of(rows.dtype, rows.rows * rows.columns),
              "stored E has the receiver's shape");
        ops_.device().to_device(rows.data, bytes.data(), bytes.size());
      }
      lock.unlock();
      const LowRankMap* map = job_.translator ? job_.translator->input(range.begin) : nullptr;
      if (map != nullptr) ops_.translate_rows(*map, hidden);
    }
    transformer.forward_layers(range, std::span(&slice, 1), kv_, hidden);
  }
  recomputed_tokens_ = end;
  recompute_ms_ += watch.ms();
  return end - begin;
}

bool ContextReuse::wait_layer(int32_t layer) {
  auto index = static_cast<size_t>(layer);
  if (job_.plan.recomputes(layer) || is_translated_[index]) return true;
  {
    std::unique_lock lock(loading_->mutex);
    loading_->changed.wait(
        lock, [&] { return loading_->is_layer_loaded[index] || !loading_->failure.empty(); });
    if (!loading_->is_layer_loaded[index]) return false;
    ops_.device().wait(*loading_->layer_events[index]);
  }
  const LowRankMap* map = job_.translator ? job_.translator->kv(layer) : nullptr;
  if (map != nullptr) {
    SequenceSlice range{0, static_cast<int32_t>(job_.context.size()), 0, job_.blocks};
    ops_.translate_kv(*map, job_.receiver->transformer->rope_options(layer), range,
                      kv_.layer(layer));
  }
  is_translated_[index] = true;
  return true;
}

bool ContextReuse::is_loaded() const {
  std::lock_guard lock(loading_->mutex);
  return loading_->loaded_layers == load_order_.size();
}

std::string ContextReuse::failure() const {
  std::lock_guard lock(loading_->mutex);
  return loading_->failure;
}

double ContextReuse::load_ms() const {
  std::lock_guard lock(loading_->mutex);
  return loading_->load_ms;
}

uint64_t ContextReuse::loaded_bytes() const {
  std::lock_guard lock(loading_->mutex);
  return loading_->loaded_bytes;
}

Tier ContextReuse::slowest_tier() const {
  std::lock_guard lock(loading_->mutex);
  return loading_->slowest_tier;
}

}  // namespace droidspeak
