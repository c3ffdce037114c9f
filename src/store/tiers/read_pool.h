// Threads on which a tier reads what it was asked for: several entries at a time, in the order in
// which they were asked for. Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "store/tiers/tier.h"

namespace droidspeak {

class ReadPool {
 public:
  // Reads entry number `index` and tells the sink that it is done. Does not throw.
  using Read = std::function<void(const EntryRead& entry, size_t index, ReadSink& sink)>;

  explicit ReadPool(Read read) : read_(std::move(read)) {}

  // The thread's body: reads until close().
  void run();
  void add(std::vector<EntryRead> entries, std::shared_ptr<ReadSink> sink);
  // What has not begun is done without its entries, now and later; run() returns.
  void close();

 private:
  struct Job {
    std::vector<EntryRead> entries;
    std::shared_ptr<ReadSink> sink;
  };

  struct Turn {
    std::shared_ptr<const Job> job{};
    size_t index = 0;
  };

  // Nothing after close().
  std::optional<Turn> take();

  const Read read_;
  Mutex mutex_;
  Condition changed_;
  std::deque<Turn> waiting_ GUARDED_BY(mutex_);  // the next entry of each job
  bool is_closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace droidspeak
