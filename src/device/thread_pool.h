// Worker threads for the CPU backend. run() and for_each() split work over the threads, the caller
// included, and return when every part is done. One at a time; parts must not call them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace droidspeak {

// That this process may use at a time.
int available_cores();

class ThreadPool {
 public:
  // 0: one thread per available core.
  explicit ThreadPool(int num_threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // Calls body(thread) once on each thread.
  void run(const std::function<void(int thread)>& body);
  // Hands out [0, count) in chunks of `grain` to whichever thread is free. Does not wait for a
  // thread that has no core at the moment: the others do its share.
  void for_each(int64_t count,
                int64_t grain,
                const std::function<void(int64_t begin, int64_t end, int thread)>& body);
  // Inside run(): waits until every thread of the pool has called it.
  void barrier();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace droidspeak
