#include "kv/kv_cache.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "base/size.h"

namespace droidspeak {
namespace {

constexpr size_t kCpuBytes = size_t{1} << 30;
constexpr size_t kActivationBytes = size_t{2} << 30;
constexpr size_t kSequences = 64;

int32_t blocks_in(const KvLayout& layout, size_t bytes) {
  size_t blocks = std::min<size_t>(bytes / layout.block_bytes(), size_t{1} << 30);
  if (blocks == 0) {
    throw Failure(ErrorCode::kExhausted,
                  fmt::format("K/V memory of {}: one block of {} tokens takes {}",
                              format_size(bytes), kBlockTokens, format_size(layout.block_bytes())));
  }
  return static_cast<int32_t>(blocks);
}

}  // namespace

KvCache::KvCache(Device& device, const KvLayout& layout, size_t bytes)
    : layout_(layout), pool_(blocks_in(layout, bytes)) {
  auto blocks = static_cast<size_t>(pool_.num_blocks());
  for (int32_t i = 0; i < layout.num_layers; ++i) {
    keys_.push_back(device.allocate(blocks * layout.half_bytes()));
    values_.push_back(device.allocate(blocks * layout.half_bytes()));
    if (layout.scale_bytes() > 0)
      scales_.push_back(device.allocate(2 * blocks * layout.scale_bytes()));
  }
}

KvLayerView KvCache::layer(int32_t layer) const {
  auto index = static_cast<size_t>(layer);
  KvLayerView view{.k = keys_[index].data(),
                   .v = values_[index].data(),
                   .dtype = layout_.dtype,
                   .num_kv_heads = layout_.num_kv_heads,
                   .head_dim = layout_.head_dim};
  if (!scales_.empty()) {
    view.k_scale = static_cast<float*>(scales_[index].data());
    view.v_scale = view.k_scale +
                   static_cast<size_t>(pool_.num_blocks()) * layout_.scale_bytes() / sizeof(float);
  }
  return view;
}

KvCache::Pieces KvCache::pieces(int32_t layer_index, int32_t block) const {
  check(block >= 0 && block < pool_.num_blocks(), "block inside the pool");
  KvLayerView view = layer(layer_index);
  auto at = [&](void* base, size_t bytes) {
    return base == nullptr ? nullptr
                           : static_cast<std::byte*>(base) + static_cast<size_t>(block) * bytes;
  };
  size_t half = layout_.half_bytes();
  size_t scale = layout_.scale_bytes();
  return {{at(view.k, half), at(view.v, half), at(view.k_scale, scale), at(view.v_scale, scale)},
          {half, half, scale, scale}};
}

void KvCache::load(CopyLane& lane, int32_t layer, int32_t block, std::span<const std::byte> bytes) {
  check(bytes.size() == layout_.layer_bytes(), "stored layer has the pool's layout");
  Pieces to = pieces(layer, block);
  const std::byte* from = bytes.data();
  for (int i = 0; i < 4; ++i) {
    if (to.bytes[i] > 0) lane.to_device(to.data[i], from, to.bytes[i]);
    from += to.bytes[i];
  }
}

void KvCache::save(CopyLane& lane, int32_t layer, int32_t block, std::span<std::byte> bytes) const {
  check(bytes.size() == layout_.layer_bytes(), "stored layer has the pool's layout");
  Pieces from = pieces(layer, block);
  std::byte* to = bytes.data();
  for (int i = 0; i < 4; ++i) {
    if (from.bytes[i] > 0) lane.to_host(to, from.data[i], from.bytes[i]);
    to += from.bytes[i];
  }
}

size_t kv_budget(const Device& device,
                 const KvLayout& layout,
                 int32_t max_positions,
                 uint64_t asked) {
  if (asked > 0) return asked;
  if (device.kind() == DeviceKind::kCpu) return kCpuBytes;
  size_t free = device.free_bytes();
  size_t reserved = std::max(kActivationBytes, free / 8);
  size_t room = free > reserved ? free - reserved : 0;
  size_t wanted =
      kSequences * static_cast<size_t>(blocks_for(max_positions)) * layout.block_bytes();
  return std::min(room, wanted);
}

bool BlockTable::reserve(BlockPool& pool, int32_t num_tokens) {
  int32_t missing = blocks_for(num_tokens) - static_cast<int32_t>(blocks_.size());
  if (missing <= 0) return true;
  auto leases = pool.take(missing);
  if (!leases) return false;
  for (BlockLease& lease : *leases) append(std::move(lease));
  return true;
}

}  // namespace droidspeak
