// Threads on which a tier reads what it was asked for, several entries at a time: those of a load
// in the order in which they were asked for, loads in turns. No load has all threads, so that one
// whose reads hang does not hold up the others. Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <list>
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

  // `most_of_one`: threads that read for one load at a time.
  ReadPool(Read read, size_t most_of_one) : read_(std::move(read)), most_of_one_(most_of_one) {}

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

  struct Load {
    const void* name = nullptr;  // ReadSink::load()
    std::deque<Turn> waiting{};  // the next entry of each job
    size_t num_under_way = 0;
  };

  using Loads = std::list<Load>;

  // Whose turn it is; end(): nobody's.
  Loads::iterator next_load() REQUIRES(mutex_);
  Loads::iterator find_load(const void* name) REQUIRES(mutex_);
  // Nothing after close().
  std::optional<Turn> take();
  void finish(const Turn& turn);

  const Read read_;
  const size_t most_of_one_;
  Mutex mutex_;
  Condition changed_;
  Loads loads_ GUARDED_BY(mutex_);  // with something to do; who has its turn goes to the end
  bool is_closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace droidspeak
