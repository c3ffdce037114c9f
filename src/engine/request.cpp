#include "engine/request.h"

namespace droidspeak {

std::optional<StreamItem> TokenStream::next(std::chrono::milliseconds timeout) {
  auto deadline = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(mutex_);
  while (next_item_ == items_.size()) {
    auto left = deadline - std::chrono::steady_clock::now();
    if (left <= left.zero()) return std::nullopt;
    changed_.wait_for(mutex_, left);
  }
  StreamItem item = std::move(items_[next_item_++]);
  if (next_item_ == items_.size()) {
    items_.clear();
    next_item_ = 0;
  }
  return item;
}

void TokenStream::cancel() {
  MutexLock lock(mutex_);
  cancelled_ = true;
}

void TokenStream::push(StreamItem item) {
  MutexLock lock(mutex_);
  items_.push_back(std::move(item));
  changed_.notify_one();
}

bool TokenStream::is_cancelled() const {
  MutexLock lock(mutex_);
  return cancelled_;
}

}  // namespace droidspeak
