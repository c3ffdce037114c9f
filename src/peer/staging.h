// Buffers that messages are made in and received into: taken again and again, so that their pages
// are touched (and, where the network wants it, registered) once. A buffer goes back when its last
// owner lets go, wherever that happens; it may outlive the pool.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"

namespace droidspeak {

class StagingPool : public std::enable_shared_from_this<StagingPool> {
 public:
  using Buffer = std::shared_ptr<std::span<std::byte>>;

  StagingPool(size_t buffer_bytes, size_t max_buffers);

  // Nothing when all are out.
  Buffer try_take();
  // Waits for one; nothing once the pool is closed.
  Buffer take();
  void close();

 private:
  using Memory = std::unique_ptr<std::byte[]>;

  Buffer make(Memory memory);
  Memory take_memory() REQUIRES(mutex_);
  void give_back(Memory memory);

  const size_t buffer_bytes_;
  const size_t max_buffers_;
  Mutex mutex_;
  Condition came_back_;
  std::vector<Memory> free_ GUARDED_BY(mutex_);
  size_t num_out_ GUARDED_BY(mutex_) = 0;
  bool is_closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace droidspeak
