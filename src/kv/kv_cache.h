// Paged K/V memory of one device: all layers of all blocks, and the block table of one sequence.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "kv/block_pool.h"
#include "kv/kv_view.h"

namespace droidspeak {

struct KvLayout {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  DType dtype = DType::kF16;

  // Bytes of K (or of V) of one layer of one block; scales of int8 not included.
  size_t half_bytes() const {
    return bytes_of(dtype, static_cast<int64_t>(num_kv_heads) * kBlockTokens * head_dim);
  }

  // f32 scales of K (or of V) of one layer of one block; 0 unless int8.
  size_t scale_bytes() const {
    return dtype == DType::kI8 ? static_cast<size_t>(num_kv_heads) * kBlockTokens * sizeof(float)
                               : 0;
  }

  // One layer of one block as stored and sent: K, V, then their scales.
  size_t layer_bytes() const { return 2 * (half_bytes() + scale_bytes()); }

  size_t block_bytes() const { return layer_bytes() * static_cast<size_t>(num_layers); }

  bool operator==(const KvLayout&) const = default;
};

class KvCache {
 public:
  // As many blocks as fit into `bytes` (at least one). Throws Failure(kExhausted).
  KvCache(Device& device, const KvLayout& layout, size_t bytes);

  const KvLayout& layout() const { return layout_; }

  BlockPool& pool() { return pool_; }

  KvLayerView layer(int32_t layer) const;

  // One layer of one block between the pool and contiguous host bytes of layout().layer_bytes().
  void load(CopyLane& lane, int32_t layer, int32_t block, std::span<const std::byte> bytes);
  void save(CopyLane& lane, int32_t layer, int32_t block, std::span<std::byte> bytes) const;

 private:
  struct Pieces {
    std::byte* data[4];  // k, v, k scale, v scale
    size_t bytes[4];
  };

  Pieces pieces(int32_t layer, int32_t block) const;

  KvLayout layout_;
  BlockPool pool_;
  std::vector<Buffer> keys_;  // one per layer
  std::vector<Buffer> values_;
  std::vector<Buffer> scales_;  // K scales then V scales, only for int8
};

// Bytes for a pool: `asked`, or when that is 0 what suits the device: 1 GiB on the CPU; on a GPU
// what is free now, less room for activations, but not more than 64 sequences of `max_positions`.
size_t kv_budget(const Device& device,
                 const KvLayout& layout,
                 int32_t max_positions,
                 uint64_t asked);

// The blocks of one sequence, in order of position.
class BlockTable {
 public:
  BlockTable() = default;

  ~BlockTable() { clear(); }

  BlockTable(BlockTable&&) = default;
  BlockTable& operator=(BlockTable&&) = default;

  // False when the pool has no room; the table is then unchanged.
  [[nodiscard]] bool reserve(BlockPool& pool, int32_t num_tokens);

  // One more block, which others may hold, too.
  void append(BlockLease lease) {
    blocks_.push_back(lease.block());
    leases_.push_back(std::move(lease));
  }

  // Last block first: of what the pool keeps, the front of a context is of use for longest.
  void clear() {
    while (!leases_.empty()) leases_.pop_back();
    blocks_.clear();
  }

  std::span<const int32_t> blocks() const { return blocks_; }

  int32_t capacity_tokens() const { return static_cast<int32_t>(blocks_.size()) * kBlockTokens; }

 private:
  std::vector<BlockLease> leases_;
  std::vector<int32_t> blocks_;
};

inline int32_t blocks_for(int32_t num_tokens) {
  return (num_tokens + kBlockTokens - 1) / kBlockTokens;
}

}  // namespace droidspeak
