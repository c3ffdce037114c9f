// What is on its way from the device into the store: copies run beside compute, and one thread
// waits for them and puts what they have brought, in the order in which they were begun. On the
// CPU, where copies are immediate, there is no thread and everything is done at once.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "device/device.h"

namespace droidspeak {

class WriteBack {
 public:
  // The device outlives this.
  explicit WriteBack(Device& device) : device_(device) {}

  ~WriteBack();  // finishes what was begun
  WriteBack(const WriteBack&) = delete;
  WriteBack& operator=(const WriteBack&) = delete;

  bool is_immediate() const { return device_.kind() == DeviceKind::kCpu; }

  Device& device() { return device_; }

  // `job` runs after all jobs before it, with a lane that has seen the compute stream as it is now.
  void submit(std::function<void(CopyLane&)> job);

  // Device memory for rows that wait to be copied; it comes back when the last owner lets go. Null
  // when too much is in use.
  std::shared_ptr<Buffer> take_buffer(size_t bytes);

 private:
  struct Job {
    std::unique_ptr<CopyLane> lane;
    std::function<void(CopyLane&)> run;
  };

  // Of the buffers; shared with them.
  struct Pool {
    Mutex mutex;
    std::vector<std::unique_ptr<Buffer>> free GUARDED_BY(mutex);
    size_t used_bytes GUARDED_BY(mutex) = 0;
  };

  void run();
  static void run_job(Job job);
  std::unique_ptr<Buffer> allocate(size_t bytes) REQUIRES(pool_->mutex);

  Device& device_;
  const std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();
  Mutex mutex_;
  Condition changed_;
  std::deque<Job> jobs_ GUARDED_BY(mutex_);
  bool is_stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // from the first job on
};

}  // namespace droidspeak
