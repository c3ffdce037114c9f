// The memory of the host tier: a byte budget taken from the device in large chunks (pinned where
// the device profits, huge pages where they help) and handed out as extents. Chunks are reused,
// never given back, so that a warm store copies without page faults.
//
// Thread-safe. An extent returns its bytes when its last owner lets go, wherever that happens;
// extents keep the memory alive, so they may outlive the store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "base/mutex.h"
#include "device/device.h"

namespace droidspeak {

class HostMemory;

// Shared by the index of a tier, by pins and by the disk writer.
class HostExtent {
 public:
  HostExtent(std::shared_ptr<HostMemory> memory, std::span<std::byte> bytes, size_t chunk)
      : memory_(std::move(memory)), bytes_(bytes), chunk_(chunk) {}

  ~HostExtent();
  HostExtent(const HostExtent&) = delete;
  HostExtent& operator=(const HostExtent&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::shared_ptr<HostMemory> memory_;
  std::span<std::byte> bytes_;
  size_t chunk_;
};

class HostMemory : public std::enable_shared_from_this<HostMemory> {
 public:
  static constexpr size_t kAlignment = 64;
  static constexpr size_t kChunkBytes = size_t{64} << 20;

  // Without a device, plain memory of the CPU device. The device outlives every extent.
  HostMemory(uint64_t budget_bytes, Device* device);

  // Nothing when no hole is large enough within the budget. Content is undefined.
  std::shared_ptr<HostExtent> allocate(size_t bytes);
  // Beside the budget, from the heap: for bytes on their way to somewhere else.
  static std::shared_ptr<HostExtent> allocate_outside(size_t bytes);

  // What an extent of `bytes` takes from the budget.
  static size_t rounded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  uint64_t budget_bytes() const { return budget_bytes_; }

  uint64_t used_bytes() const;

  // Panics unless holes are disjoint, merged, listed twice, and add up with the used bytes.
  void check_integrity() const;

 private:
  friend class HostExtent;

  struct Chunk {
    Buffer buffer;
    size_t bytes = 0;
    std::map<size_t, size_t> holes;  // offset -> bytes
  };

  bool add_chunk(size_t at_least) REQUIRES(mutex_);
  void add_hole(size_t chunk, size_t offset, size_t bytes) REQUIRES(mutex_);
  void remove_hole(size_t chunk, size_t offset, size_t bytes) REQUIRES(mutex_);
  void give_back(size_t chunk, std::span<std::byte> bytes);

  const uint64_t budget_bytes_;
  std::unique_ptr<Device> own_device_;  // when none was given
  Device& device_;

  mutable Mutex mutex_;
  std::vector<Chunk> chunks_ GUARDED_BY(mutex_);
  std::set<std::tuple<size_t, size_t, size_t>> holes_by_size_
      GUARDED_BY(mutex_);  // bytes, chunk, offset
  uint64_t chunk_bytes_ GUARDED_BY(mutex_) = 0;
  uint64_t used_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace droidspeak
