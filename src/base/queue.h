// Bounded queue between threads. push() refuses when full, pop() waits; close() wakes everyone.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "base/mutex.h"

namespace droidspeak {

template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // False when full or closed; the value is then untouched.
  [[nodiscard]] bool push(T&& value) {
    MutexLock lock(mutex_);
    if (closed_ || items_.size() >= capacity_) return false;
    items_.push_back(std::move(value));
    not_empty_.notify_one();
    return true;
  }

  // Waits for an item; nothing once the queue is closed and drained.
  std::optional<T> pop() {
    MutexLock lock(mutex_);
    while (items_.empty() && !closed_) not_empty_.wait(mutex_);
    return take_front();
  }

  std::optional<T> try_pop() {
    MutexLock lock(mutex_);
    return take_front();
  }

  // Waits at most `timeout`.
  template <class Duration>
  std::optional<T> pop_for(Duration timeout) {
    auto deadline = std::chrono::steady_clock::now() + timeout;
    MutexLock lock(mutex_);
    while (items_.empty() && !closed_) {
      auto left = deadline - std::chrono::steady_clock::now();
      if (left <= left.zero() || !not_empty_.wait_for(mutex_, left)) break;
    }
    return take_front();
  }

  void close() {
    MutexLock lock(mutex_);
    closed_ = true;
    not_empty_.notify_all();
  }

  size_t size() {
    MutexLock lock(mutex_);
    return items_.size();
  }

 private:
  std::optional<T> take_front() REQUIRES(mutex_) {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

  const size_t capacity_;
  Mutex mutex_;
  Condition not_empty_;
  std::deque<T> items_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace droidspeak
