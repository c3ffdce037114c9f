#include "peer/staging.h"

namespace droidspeak {

StagingPool::StagingPool(size_t buffer_bytes, size_t max_buffers)
    : buffer_bytes_(buffer_bytes), max_buffers_(max_buffers) {}

StagingPool::Memory StagingPool::take_memory() {
  ++num_out_;
  if (free_.empty()) return nullptr;
  Memory memory = std::move(free_.back());
  free_.pop_back();
  return memory;
}

StagingPool::Buffer StagingPool::make(Memory memory) {
  // Not value-initialised: pages that no message needs are never touched.
  if (memory == nullptr) memory.reset(new std::byte[buffer_bytes_]);
  auto* view = new std::span<std::byte>(memory.release(), buffer_bytes_);
  return {view, [pool = shared_from_this()](std::span<std::byte>* buffer) {
            pool->give_back(Memory(buffer->data()));
            delete buffer;
          }};
}

StagingPool::Buffer StagingPool::try_take() {
  Memory memory;
  {
    MutexLock lock(mutex_);
    if (is_closed_ || num_out_ >= max_buffers_) return nullptr;
    memory = take_memory();
  }
  return make(std::move(memory));
}

StagingPool::Buffer StagingPool::take() {
  Memory memory;
  {
    MutexLock lock(mutex_);
    while (num_out_ >= max_buffers_ && !is_closed_) came_back_.wait(mutex_);
    if (is_closed_) return nullptr;
    memory = take_memory();
  }
  return make(std::move(memory));
}

void StagingPool::give_back(Memory memory) {
  MutexLock lock(mutex_);
  --num_out_;
  free_.push_back(std::move(memory));
  came_back_.notify_one();
}

void StagingPool::close() {
  MutexLock lock(mutex_);
  is_closed_ = true;
  came_back_.notify_all();
}

}  // namespace droidspeak
