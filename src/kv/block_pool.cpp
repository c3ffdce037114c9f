#include "kv/block_pool.h"

#include "base/check.h"

namespace droidspeak {

BlockLease BlockLease::share() const {
  check(pool_ != nullptr, "share() of a live lease");
  pool_->lease(block_);
  return {pool_, block_};
}

void BlockLease::release() {
  if (pool_ == nullptr) return;
  pool_->give_back(block_);
  pool_ = nullptr;
}

BlockPool::BlockPool(int32_t num_blocks) : blocks_(static_cast<size_t>(num_blocks)) {
  free_blocks_.reserve(static_cast<size_t>(num_blocks));
  for (int32_t block = num_blocks - 1; block >= 0; --block) free_blocks_.push_back(block);
}

BlockPool::~BlockPool() {
  check(num_free() == num_blocks(), "all blocks returned before the pool ends");
}

void BlockPool::lease(int32_t block) {
  ++blocks_[static_cast<size_t>(block)].num_leases;
}

void BlockPool::give_back(int32_t block) {
  Block& returned = blocks_[static_cast<size_t>(block)];
  check(returned.num_leases > 0, "released block is leased");
  if (--returned.num_leases > 0) return;
  if (returned.key == nullptr) return free_blocks_.push_back(block);
  returned.freed = num_returns_++;
  kept_.emplace(returned.freed, block);
}

std::optional<std::vector<BlockLease>> BlockPool::take(int32_t count) {
  if (count > num_free()) return std::nullopt;
  std::vector<BlockLease> leases;
  leases.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) {
    if (free_blocks_.empty()) unlabel(kept_.begin()->second);
    int32_t block = free_blocks_.back();
    free_blocks_.pop_back();
    lease(block);
    leases.push_back(BlockLease(this, block));
  }
  return leases;
}

void BlockPool::label(int32_t block, const Digest& key) {
  Block& labelled = blocks_[static_cast<size_t>(block)];
  check(labelled.num_leases > 0, "a labelled block is leased");
  if (labelled.key != nullptr) {
    check(*labelled.key == key, "what a labelled block holds does not change");
    return;
  }
  auto [place, is_new] = blocks_of_keys_.try_emplace(key, block);
  if (is_new) labelled.key = &place->first;
}

size_t BlockPool::longest_prefix(std::span<const Digest> keys) const {
  size_t count = 0;
  while (count < keys.size() && blocks_of_keys_.contains(keys[count])) ++count;
  return count;
}

std::optional<BlockLease> BlockPool::find(const Digest& key) {
  auto found = blocks_of_keys_.find(key);
  if (found == blocks_of_keys_.end()) return std::nullopt;
  Block& block = blocks_[static_cast<size_t>(found->second)];
  if (block.num_leases == 0) kept_.erase(block.freed);
  lease(found->second);
  return BlockLease(this, found->second);
}

// A free block goes to those without a label.
void BlockPool::unlabel(int32_t block) {
  Block& labelled = blocks_[static_cast<size_t>(block)];
  if (labelled.num_leases == 0) {
    kept_.erase(labelled.freed);
    free_blocks_.push_back(block);
  }
  Digest key = *labelled.key;
  labelled.key = nullptr;
  blocks_of_keys_.erase(key);
}

void BlockPool::forget(std::span<const Digest> keys) {
  for (const Digest& key : keys) {
    auto found = blocks_of_keys_.find(key);
    if (found != blocks_of_keys_.end()) unlabel(found->second);
  }
}

void BlockPool::forget_all() {
  while (!blocks_of_keys_.empty()) unlabel(blocks_of_keys_.begin()->second);
}

void BlockPool::check_integrity() const {
  std::vector<bool> is_listed(blocks_.size(), false);
  auto list = [&](int32_t block) {
    auto index = static_cast<size_t>(block);
    check(index < blocks_.size() && !is_listed[index], "free block listed once");
    check(blocks_[index].num_leases == 0, "free block has no lease");
    is_listed[index] = true;
  };
  for (int32_t block : free_blocks_) {
    list(block);
    check(blocks_[static_cast<size_t>(block)].key == nullptr, "what is not kept has no label");
  }
  for (auto [freed, block] : kept_) {
    list(block);
    const Block& kept = blocks_[static_cast<size_t>(block)];
    check(kept.key != nullptr && kept.freed == freed, "a kept block has its label");
  }
  size_t num_labels = 0;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    check(is_listed[i] == (blocks_[i].num_leases == 0), "block is free or leased");
    if (blocks_[i].key == nullptr) continue;
    ++num_labels;
    auto found = blocks_of_keys_.find(*blocks_[i].key);
    check(found != blocks_of_keys_.end() && found->second == static_cast<int32_t>(i),
          "a label leads to its block");
  }
  check(num_labels == blocks_of_keys_.size(), "every label is a block's");
}

}  // namespace droidspeak
