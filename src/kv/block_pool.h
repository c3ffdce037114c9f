// Which K/V blocks are free, and what is in the others. Hands out block ids as leases: a block
// returns when its last lease dies. A block whose content is complete can be labelled with the key
// of what it holds; others then share it, also after its return, until it is given out anew.
// Owned and used by one thread (the engine's).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/hash.h"

namespace droidspeak {

class BlockPool;

// Move-only share of one block. share() makes another lease of the same block.
class BlockLease {
 public:
  BlockLease() = default;

  ~BlockLease() { release(); }

  BlockLease(BlockLease&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), block_(other.block_) {}

  BlockLease& operator=(BlockLease&& other) noexcept {
    if (this != &other) {
      release();
      pool_ = std::exchange(other.pool_, nullptr);
      block_ = other.block_;
    }
    return *this;
  }

  BlockLease(const BlockLease&) = delete;
  BlockLease& operator=(const BlockLease&) = delete;

  int32_t block() const { return block_; }

  BlockLease share() const;

 private:
  friend class BlockPool;

  BlockLease(BlockPool* pool, int32_t block) : pool_(pool), block_(block) {}

  void release();

  BlockPool* pool_ = nullptr;
  int32_t block_ = -1;
};

class BlockPool {
 public:
  explicit BlockPool(int32_t num_blocks);
  ~BlockPool();  // every lease has been returned
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Nothing when fewer than `count` blocks are free; then none is taken. Blocks without a label
  // first, the last freed before the others; then labelled ones, the longest free first.
  std::optional<std::vector<BlockLease>> take(int32_t count);

  // Of a leased block that will not change any more. Where another block has the key already, that
  // one keeps it.
  void label(int32_t block, const Digest& key);
  // How many of the leading keys name a block.
  size_t longest_prefix(std::span<const Digest> keys) const;
  // A lease of the block that the key names.
  std::optional<BlockLease> find(const Digest& key);
  // Nobody finds what these keys name, or anything, any more; leases stay.
  void forget(std::span<const Digest> keys);
  void forget_all();

  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }

  int32_t num_free() const { return static_cast<int32_t>(free_blocks_.size() + kept_.size()); }

  // Panics unless every block is either free or leased, and listed once, and labels are unique.
  void check_integrity() const;

 private:
  friend class BlockLease;

  struct Block {
    int32_t num_leases = 0;       // 0: free
    const Digest* key = nullptr;  // in blocks_of_keys_; null: no label
    uint64_t freed = 0;           // its place in kept_, while it is there
  };

  void lease(int32_t block);
  void give_back(int32_t block);
  void unlabel(int32_t block);

  std::vector<Block> blocks_;
  std::vector<int32_t> free_blocks_;  // without a label
  std::map<uint64_t, int32_t> kept_;  // free, labelled; in order of their return
  std::unordered_map<Digest, int32_t, DigestHash> blocks_of_keys_;  // labelled, free or not
  uint64_t num_returns_ = 0;
};

}  // namespace droidspeak
