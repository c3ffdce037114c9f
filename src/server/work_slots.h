// Bounds how many connection threads parse, render and tokenise at the same time: the processor's
// cores belong to the engine, and what a request costs in memory until its tokens are known is
// held by few at a time. Thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "base/mutex.h"

namespace droidspeak {

class WorkSlots {
 public:
  explicit WorkSlots(int count) : num_free_(count) {}

  // One of them, given back when destroyed.
  class Slot {
   public:
    explicit Slot(WorkSlots* owner) : owner_(owner) {}

    Slot(Slot&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)) {}

    Slot& operator=(Slot&&) = delete;
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;

    ~Slot() {
      if (owner_ != nullptr) owner_->give_back();
    }

    // False: none was free in time, or it was not wanted any more.
    explicit operator bool() const { return owner_ != nullptr; }

   private:
    WorkSlots* owner_;
  };

  // Waits until one is free, `limit` has passed or `is_wanted` turns false.
  Slot take(const std::function<bool()>& is_wanted, std::chrono::milliseconds limit);

 private:
  void give_back();

  Mutex mutex_;
  Condition changed_;
  int num_free_ GUARDED_BY(mutex_);
};

}  // namespace droidspeak
