// The engine's metrics between the thread that counts and the threads that look.
#pragma once

#include "base/mutex.h"
#include "engine/metrics.h"

namespace droidspeak {

class MetricsBoard {
 public:
  // change(EngineMetrics&), under the lock.
  template <class Change>
  void update(Change&& change) {
    MutexLock lock(mutex_);
    change(metrics_);
  }

  EngineMetrics snapshot() const {
    MutexLock lock(mutex_);
    return metrics_;
  }

 private:
  mutable Mutex mutex_;
  EngineMetrics metrics_ GUARDED_BY(mutex_);
};

}  // namespace droidspeak
