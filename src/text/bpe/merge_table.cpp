#include "text/bpe/merge_table.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/check.h"

namespace droidspeak {
namespace {

constexpr size_t kLongestScan = 48;  // symbols; about where the queue overtakes

}  // namespace

MergeTable::MergeTable(const std::vector<Merge>& merges) {
  size_t size = std::bit_ceil(merges.size() * 2 + 2);
  slots_.resize(size);
  mask_ = size - 1;
  shift_ = 64 - std::countr_zero(size);
  for (const Merge& merge : merges) {
    check(merge.left >= 0 && merge.right >= 0 && merge.merged >= 0, "merges are of known tokens");
    uint64_t key = key_of(merge.left, merge.right);
    size_t slot = slot_of(key);
    while (slots_[slot].key != kFree && slots_[slot].key != key) slot = (slot + 1) & mask_;
    slots_[slot] = {key, {merge.rank, merge.merged}};
  }
}

void Merger::merge(std::vector<int32_t>& symbols) {
  if (symbols.size() <= kLongestScan) {
    merge_by_scanning(symbols);
  } else {
    merge_by_queue(symbols);
  }
}

void Merger::merge_by_scanning(std::vector<int32_t>& symbols) {
  if (symbols.size() < 2) return;
  size_t count = symbols.size();
  joined_.resize(count);  // joined_[i] is of the pair (i, i + 1)
  for (size_t i = 0; i + 1 < count; ++i) joined_[i] = table_.find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (joined_[i].rank < joined_[best].rank) best = i;
    }
    if (joined_[best].rank == MergeTable::kNone) break;
    symbols[best] = joined_[best].merged;
    for (size_t i = best + 1; i + 1 < count; ++i) {
      symbols[i] = symbols[i + 1];
      joined_[i - 1] = joined_[i];
    }
    --count;
    if (best > 0) joined_[best - 1] = table_.find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) joined_[best] = table_.find(symbols[best], symbols[best + 1]);
  }
  symbols.resize(count);
}

void Merger::push_candidate(uint32_t position) {
  const Link& left = links_[position];
  if (left.next == kEnd) return;
  int32_t right = links_[left.next].id;
  MergeTable::Joined joined = table_.find(left.id, right);
  if (joined.rank == MergeTable::kNone) return;
  heap_.push_back((uint64_t{joined.rank} << 32) | position);
  std::push_heap(heap_.begin(), heap_.end(), std::greater());
}

void Merger::merge_by_queue(std::vector<int32_t>& symbols) {
  check(symbols.size() < kEnd, "a text has fewer than 2^32 symbols");
  if (symbols.empty()) return;
  auto count = static_cast<uint32_t>(symbols.size());
  links_.resize(count);
  heap_.clear();
  heap_.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    links_[i] = {symbols[i], i == 0 ? kEnd : i - 1, i + 1 == count ? kEnd : i + 1};
  }
  for (uint32_t i = 0; i < count; ++i) push_candidate(i);
  while (!heap_.empty()) {
    uint64_t best = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), std::greater());
    heap_.pop_back();
    auto position = static_cast<uint32_t>(best);
    Link& left = links_[position];
    // A candidate outlives its pair when a neighbour joined first; another pair of the same rank is
    // as good.
    if (left.id < 0 || left.next == kEnd) continue;
    Link& right = links_[left.next];
    MergeTable::Joined joined = table_.find(left.id, right.id);
    if (joined.rank != best >> 32) continue;
    left.id = joined.merged;
    left.next = right.next;
    right.id = -1;
    if (left.next != kEnd) links_[left.next].previous = position;
    if (left.previous != kEnd) push_candidate(left.previous);
    push_candidate(position);
  }
  symbols.clear();
  for (uint32_t i = 0; i != kEnd; i = links_[i].next) symbols.push_back(links_[i].id);
}

}  // namespace droidspeak
