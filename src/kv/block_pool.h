// Which K/V blocks are free. Hands out block ids as leases: a block returns when its last lease
// dies. Owned and used by one thread (the engine's).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

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

  // Nothing when fewer than `count` blocks are free; then none is taken. Last freed, first given.
  std::optional<std::vector<BlockLease>> take(int32_t count);

  int32_t num_blocks() const { return static_cast<int32_t>(lease_counts_.size()); }

  int32_t num_free() const { return static_cast<int32_t>(free_blocks_.size()); }

  // Panics unless every block is either free or leased, and listed once.
  void check_integrity() const;

 private:
  friend class BlockLease;

  std::vector<int32_t> free_blocks_;
  std::vector<int32_t> lease_counts_;  // 0: free
};

}  // namespace droidspeak
