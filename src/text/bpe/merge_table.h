// The pairs of tokens that BPE joins, and the joining itself. Immutable after it is filled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace droidspeak {

struct Merge {
  int32_t left = -1;
  int32_t right = -1;
  int32_t merged = -1;
  uint32_t rank = 0;  // lower joins first; equal ranks join from the left
};

class MergeTable {
 public:
  struct Joined {
    uint32_t rank = kNone;
    int32_t merged = -1;
  };

  static constexpr uint32_t kNone = UINT32_MAX;

  MergeTable() : MergeTable(std::vector<Merge>()) {}

  // Where a pair occurs twice the later one counts.
  explicit MergeTable(const std::vector<Merge>& merges);

  // rank kNone when the pair does not join.
  Joined find(int32_t left, int32_t right) const {
    uint64_t key = key_of(left, right);
    for (size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
      const Slot& entry = slots_[slot];
      if (entry.key == key) return entry.joined;
      if (entry.key == kFree) return {};
    }
  }

 private:
  static constexpr uint64_t kFree = UINT64_MAX;  // no pair: ids are not negative

  struct Slot {
    uint64_t key = kFree;
    Joined joined;
  };

  static uint64_t key_of(int32_t left, int32_t right) {
    return (uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right);
  }

  size_t slot_of(uint64_t key) const { return (key * 0x9E3779B97F4A7C15u) >> shift_; }

  std::vector<Slot> slots_;
  size_t mask_ = 0;
  int shift_ = 0;
};

// Joins `symbols` in place until no pair joins. Memory is kept between calls; one per thread.
class Merger {
 public:
  explicit Merger(const MergeTable& table) : table_(table) {}

  // Picks one of the two below by length.
  void merge(std::vector<int32_t>& symbols);

  // Looks at all pairs for each join: quadratic, best for words.
  void merge_by_scanning(std::vector<int32_t>& symbols);
  // Linked list and priority queue: n log n.
  void merge_by_queue(std::vector<int32_t>& symbols);

 private:
  struct Link {
    int32_t id;
    uint32_t previous;
    uint32_t next;
  };

  static constexpr uint32_t kEnd = UINT32_MAX;

  void push_candidate(uint32_t position);

  const MergeTable& table_;
  std::vector<MergeTable::Joined> joined_;
  std::vector<Link> links_;
  std::vector<uint64_t> heap_;  // candidates: rank, then position; the least comes first
};

}  // namespace droidspeak
