#include "sharing/transfer_threads.h"

#include <utility>

namespace droidspeak {

TransferThreads::~TransferThreads() {
  {
    MutexLock lock(mutex_);
    is_stopping_ = true;
    waiting_.clear();
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

void TransferThreads::start(std::function<void()> transfer) {
  MutexLock lock(mutex_);
  waiting_.push_back(std::move(transfer));
  if (waiting_.size() > num_idle_ && threads_.size() < kMaxThreads)
    threads_.emplace_back([this] { run(); });
  changed_.notify_one();
}

void TransferThreads::run() {
  while (true) {
    std::function<void()> transfer;
    {
      MutexLock lock(mutex_);
      ++num_idle_;
      while (waiting_.empty() && !is_stopping_) changed_.wait(mutex_);
      --num_idle_;
      if (waiting_.empty()) return;
      transfer = std::move(waiting_.front());
      waiting_.pop_front();
    }
    transfer();
  }
}

}  // namespace droidspeak
