#include "kv/block_pool.h"

#include "base/check.h"

namespace droidspeak {

BlockLease BlockLease::share() const {
  check(pool_ != nullptr, "share() of a live lease");
  ++pool_->lease_counts_[static_cast<size_t>(block_)];
  return {pool_, block_};
}

void BlockLease::release() {
  if (pool_ == nullptr) return;
  int32_t& count = pool_->lease_counts_[static_cast<size_t>(block_)];
  check(count > 0, "released block is leased");
  if (--count == 0) pool_->free_blocks_.push_back(block_);
  pool_ = nullptr;
}

BlockPool::BlockPool(int32_t num_blocks) : lease_counts_(static_cast<size_t>(num_blocks), 0) {
  free_blocks_.reserve(static_cast<size_t>(num_blocks));
  for (int32_t block = num_blocks - 1; block >= 0; --block) free_blocks_.push_back(block);
}

BlockPool::~BlockPool() {
  check(num_free() == num_blocks(), "all blocks returned before the pool ends");
}

std::optional<std::vector<BlockLease>> BlockPool::take(int32_t count) {
  if (count > num_free()) return std::nullopt;
  std::vector<BlockLease> leases;
  leases.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) {
    int32_t block = free_blocks_.back();
    free_blocks_.pop_back();
    lease_counts_[static_cast<size_t>(block)] = 1;
    leases.push_back(BlockLease(this, block));
  }
  return leases;
}

void BlockPool::check_integrity() const {
  std::vector<bool> seen(lease_counts_.size(), false);
  for (int32_t block : free_blocks_) {
    auto index = static_cast<size_t>(block);
    check(index < seen.size() && !seen[index], "free block listed once");
    check(lease_counts_[index] == 0, "free block has no lease");
    seen[index] = true;
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    check(seen[i] == (lease_counts_[i] == 0), "block is free or leased");
  }
}

}  // namespace droidspeak
