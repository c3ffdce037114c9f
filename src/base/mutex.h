// Mutex with Clang's thread-safety annotations; `clang++ -Wthread-safety` checks GUARDED_BY in
// lint.
#pragma once

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define DROIDSPEAK_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define DROIDSPEAK_THREAD_ANNOTATION(x)
#endif
#define GUARDED_BY(x) DROIDSPEAK_THREAD_ANNOTATION(guarded_by(x))
#define REQUIRES(x) DROIDSPEAK_THREAD_ANNOTATION(requires_capability(x))

namespace droidspeak {

class DROIDSPEAK_THREAD_ANNOTATION(capability("mutex")) Mutex {
 public:
  void lock() DROIDSPEAK_THREAD_ANNOTATION(acquire_capability()) { mutex_.lock(); }

  void unlock() DROIDSPEAK_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }

 private:
  friend class Condition;
  std::mutex mutex_;
};

class DROIDSPEAK_THREAD_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) DROIDSPEAK_THREAD_ANNOTATION(acquire_capability(mutex))
      : mutex_(mutex) {
    mutex_.lock();
  }

  ~MutexLock() DROIDSPEAK_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }

  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class Condition {
 public:
  // The caller holds `mutex`; wakes up spuriously, so wait in a loop.
  void wait(Mutex& mutex) REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }

  // False when the time ran out.
  template <class Duration>
  bool wait_for(Mutex& mutex, Duration duration) REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    bool woken = condition_.wait_for(lock, duration) == std::cv_status::no_timeout;
    lock.release();
    return woken;
  }

  void notify_one() { condition_.notify_one(); }

  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace droidspeak
