#include "store/host_memory.h"

#include <algorithm>
#include <new>

#include "base/check.h"
#include "base/error.h"

namespace droidspeak {

HostExtent::~HostExtent() {
  if (memory_ != nullptr) {
    memory_->give_back(chunk_, bytes_);
  } else {
    ::operator delete (bytes_.data(), std::align_val_t{HostMemory::kAlignment});
  }
}

HostMemory::HostMemory(uint64_t budget_bytes, Device* device)
    : budget_bytes_(budget_bytes),
      own_device_(device == nullptr ? make_cpu_device() : nullptr),
      device_(device == nullptr ? *own_device_ : *device) {}

std::shared_ptr<HostExtent> HostMemory::allocate(size_t bytes) {
  size_t wanted = std::max(rounded(bytes), kAlignment);
  MutexLock lock(mutex_);
  auto best = holes_by_size_.lower_bound({wanted, 0, 0});
  if (best == holes_by_size_.end()) {
    if (!add_chunk(wanted)) return nullptr;
    best = holes_by_size_.lower_bound({wanted, 0, 0});
  }
  auto [hole_bytes, chunk, offset] = *best;
  remove_hole(chunk, offset, hole_bytes);
  if (hole_bytes > wanted) add_hole(chunk, offset + wanted, hole_bytes - wanted);
  used_bytes_ += wanted;
  auto* data = static_cast<std::byte*>(chunks_[chunk].buffer.data()) + offset;
  return std::make_shared<HostExtent>(shared_from_this(), std::span(data, bytes), chunk);
}

std::shared_ptr<HostExtent> HostMemory::allocate_outside(size_t bytes) {
  void* data = ::operator new (std::max<size_t>(bytes, 1), std::align_val_t{kAlignment});
  return std::make_shared<HostExtent>(nullptr, std::span(static_cast<std::byte*>(data), bytes), 0);
}

bool HostMemory::add_chunk(size_t at_least) {
  uint64_t left = budget_bytes_ - chunk_bytes_;
  uint64_t bytes = std::min<uint64_t>(left, std::max(at_least, kChunkBytes));
  bytes = bytes / kAlignment * kAlignment;
  if (bytes < at_least) return false;
  Chunk chunk;
  try {
    chunk.buffer = device_.allocate_host(bytes);
  } catch (
      const Failure&) {  // the machine has less memory than the budget: live with what there is
    return false;
  }
  chunk.bytes = bytes;
  chunks_.push_back(std::move(chunk));
  chunk_bytes_ += bytes;
  add_hole(chunks_.size() - 1, 0, bytes);
  return true;
}

void HostMemory::add_hole(size_t chunk, size_t offset, size_t bytes) {
  chunks_[chunk].holes.emplace(offset, bytes);
  holes_by_size_.emplace(bytes, chunk, offset);
}

void HostMemory::remove_hole(size_t chunk, size_t offset, size_t bytes) {
  chunks_[chunk].holes.erase(offset);
  holes_by_size_.erase({bytes, chunk, offset});
}

void HostMemory::give_back(size_t chunk, std::span<std::byte> bytes) {
  MutexLock lock(mutex_);
  auto* base = static_cast<std::byte*>(chunks_[chunk].buffer.data());
  auto offset = static_cast<size_t>(bytes.data() - base);
  size_t freed = std::max(rounded(bytes.size()), kAlignment);
  used_bytes_ -= freed;
  auto& holes = chunks_[chunk].holes;
  auto next = holes.lower_bound(offset);
  if (next != holes.end() && next->first == offset + freed) {
    size_t next_bytes = next->second;
    remove_hole(chunk, offset + freed, next_bytes);
    freed += next_bytes;
    next = holes.lower_bound(offset);
  }
  if (next != holes.begin()) {
    auto [before, before_bytes] = *std::prev(next);
    if (before + before_bytes == offset) {
      remove_hole(chunk, before, before_bytes);
      offset = before;
      freed += before_bytes;
    }
  }
  add_hole(chunk, offset, freed);
}

uint64_t HostMemory::used_bytes() const {
  MutexLock lock(mutex_);
  return used_bytes_;
}

void HostMemory::check_integrity() const {
  MutexLock lock(mutex_);
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
  size_t num_holes = 0;
  for (size_t i = 0; i < chunks_.size(); ++i) {
    size_t end_of_last = SIZE_MAX;
    for (auto [offset, bytes] : chunks_[i].holes) {
      check(end_of_last == SIZE_MAX || offset > end_of_last, "holes are disjoint and merged");
      check(holes_by_size_.contains({bytes, i, offset}), "a hole is listed by size");
      end_of_last = offset + bytes;
      check(end_of_last <= chunks_[i].bytes, "a hole lies inside its chunk");
      free_bytes += bytes;
      ++num_holes;
    }
    total_bytes += chunks_[i].bytes;
  }
  check(num_holes == holes_by_size_.size(), "every hole is listed once by size");
  check(total_bytes == chunk_bytes_ && chunk_bytes_ <= budget_bytes_, "chunks stay in the budget");
  check(free_bytes + used_bytes_ == total_bytes, "used and free bytes add up");
}

}  // namespace droidspeak
