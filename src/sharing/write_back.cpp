#include "sharing/write_back.h"

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include <spdlog/spdlog.h>

#include "base/error.h"

namespace droidspeak {
namespace {

constexpr size_t kMostBufferBytes = size_t{512} << 20;

}  // namespace

WriteBack::~WriteBack() {
  {
    MutexLock lock(mutex_);
    is_stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void WriteBack::submit(std::function<void(CopyLane&)> job) {
  Job begun{device_.make_copy_lane(), std::move(job)};
  begun.lane->wait_for_compute();
  if (is_immediate()) return run_job(std::move(begun));
  MutexLock lock(mutex_);
  try {
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {  // the system has none: whoever computes waits
    return run_job(std::move(begun));
  }
  jobs_.push_back(std::move(begun));
  changed_.notify_all();
}

void WriteBack::run() {
  while (true) {
    Job job;
    {
      MutexLock lock(mutex_);
      while (jobs_.empty() && !is_stopping_) changed_.wait(mutex_);
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    run_job(std::move(job));
  }
}

// Losing a block costs a later hit, never an answer; a broken device is noticed by who computes.
void WriteBack::run_job(Job job) {
  try {
    job.run(*job.lane);
  } catch (const std::exception& exception) {
    spdlog::warn("a context is not stored: {}", exception.what());
  }
  job.lane.reset();  // waits for copies; only then may go what they use
}

std::shared_ptr<Buffer> WriteBack::take_buffer(size_t bytes) {
  std::unique_ptr<Buffer> buffer;
  MutexLock lock(pool_->mutex);
  auto found = std::ranges::find_if(
      pool_->free, [&](const auto& candidate) { return candidate->bytes() >= bytes; });
  if (found != pool_->free.end()) {
    buffer = std::move(*found);
    pool_->free.erase(found);
  } else {
    buffer = allocate(bytes);
  }
  if (!buffer) return nullptr;
  pool_->used_bytes += buffer->bytes();
  auto give_back = [pool = pool_](Buffer* used) {
    MutexLock give_lock(pool->mutex);
    pool->used_bytes -= used->bytes();
    pool->free.emplace_back(used);
  };
  return {buffer.release(), give_back};
}

std::unique_ptr<Buffer> WriteBack::allocate(size_t bytes) {
  pool_->free.clear();  // all of them too small
  if (pool_->used_bytes + bytes > kMostBufferBytes) return nullptr;
  try {
    return std::make_unique<Buffer>(device_.allocate(bytes));
  } catch (const Failure&) {  // the device's memory is used up
    return nullptr;
  }
}

}  // namespace droidspeak
