// Worker threads for the CPU backend. run() splits work over all threads, the caller included, and
// returns when every part is done. One run at a time; parts must not call run().
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace droidspeak {

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
  // Hands out [0, count) in chunks of `grain` to whichever thread is free.
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
