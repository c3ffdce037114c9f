// Bounds how many connection threads parse, render and tokenise at the same time: the processor's
// cores belong to the engine, and what a request costs in memory until its tokens are known is
// held by few at a time. Keys take turns: who asks for many at once waits behind others, not they
// behind him. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
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

  // Waits until one is free and it is the key's turn, `limit` has passed or `is_wanted` turns
  // false. `key`: its name; empty: none.
  Slot take(const std::string& key,
            const std::function<bool()>& is_wanted,
            std::chrono::milliseconds limit);

 private:
  // Those who wait with one key.
  struct Line {
    int num_waiting = 0;
    uint64_t last_turn = 0;
    Condition changed;
  };

  // Somebody in a line, however he leaves it.
  class Waiting {
   public:
    explicit Waiting(Line& line) : line_(line) { ++line_.num_waiting; }

    ~Waiting() { --line_.num_waiting; }

    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Line& line_;
  };

  void give_back();
  // The one that has waited longest for a turn among those in which somebody waits; null: none.
  Line* next_line() REQUIRES(mutex_);
  void wake_next() REQUIRES(mutex_);

  Mutex mutex_;
  int num_free_ GUARDED_BY(mutex_);
  uint64_t num_turns_ GUARDED_BY(mutex_) = 0;
  std::map<std::string, Line> lines_ GUARDED_BY(mutex_);  // by key
};

}  // namespace droidspeak
