// Threads on which a tier reads what it was asked for, several entries at a time: those of a load
// in the order in which they were asked for, loads in turns. No load has all threads, so that one
// whose reads hang does not hold up the others, and what several loads wait for is read at the turn
// of any of them. Thread-safe.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "store/tiers/tier.h"

namespace droidspeak {

class ReadPool {
 public:
  // Reads entry number `index` and tells the sink that it is done. Does not throw.
  using Read = std::function<void(const EntryRead& entry, size_t index, ReadSink& sink)>;

  // One that takes so long, and that nobody waits for any more, hangs.
  static constexpr std::chrono::seconds kHangs{1};

  // `most_of_one`: threads that read for one load at a time. The clock outlives the pool.
  ReadPool(Read read, size_t most_of_one, const Clock& clock)
      : read_(std::move(read)), most_of_one_(most_of_one), clock_(clock) {}

  // The thread's body: reads until close().
  void run();
  void add(std::vector<EntryRead> entries, std::shared_ptr<ReadSink> sink);
  // See CacheTier.
  void share(LoadId load, const ReadSink& sink, std::span<const size_t> indices);
  // Blocks of which a read hangs: another one would take one more thread.
  std::vector<Digest> hanging() const;
  // What has not begun is done without its entries, now and later; run() returns.
  void close();

 private:
  struct Job {
    std::vector<EntryRead> entries;
    std::shared_ptr<ReadSink> sink;
    std::vector<bool> has_begun;  // under the mutex
  };

  // One entry of a job; a job that several loads share has several for it.
  struct Turn {
    std::shared_ptr<Job> job{};
    size_t index = 0;

    const EntryRead& entry() const { return job->entries[index]; }

    bool has_begun() const { return job->has_begun[index]; }
  };

  struct Load {
    LoadId id;
    std::deque<Turn> waiting{};
  };

  struct Reading {
    Turn turn;
    LoadId load;  // whose turn it was
    std::chrono::nanoseconds since;
  };

  using Loads = std::list<Load>;
  using Readings = std::list<Reading>;

  // Whose turn it is; end(): nobody's.
  Loads::iterator next_load() REQUIRES(mutex_);
  Load& load_of(LoadId id) REQUIRES(mutex_);
  std::shared_ptr<Job> find_job(const ReadSink& sink) const REQUIRES(mutex_);
  size_t num_under_way(LoadId load) const REQUIRES(mutex_);
  // Nothing after close().
  std::optional<Readings::iterator> take();

  const Read read_;
  const size_t most_of_one_;
  const Clock& clock_;
  mutable Mutex mutex_;
  Condition changed_;
  Loads loads_ GUARDED_BY(mutex_);  // who wait; who has its turn goes to the end
  Readings under_way_ GUARDED_BY(mutex_);
  bool is_closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace droidspeak
