#include "device/thread_pool.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <fstream>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#include <sched.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/check.h"

namespace droidspeak {
namespace {

// Cores that the control group may use at a time; a container often sees more than it may use.
int cores_of_quota() {
  double quota = 0;
  double period = 0;
  if (std::ifstream("/sys/fs/cgroup/cpu.max") >> quota >> period && period > 0) {
    return std::max(1, static_cast<int>(std::ceil(quota / period)));
  }
  return std::numeric_limits<int>::max();  // none, or "max"
}

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) cores = CPU_COUNT(&set);
  return std::min(cores, cores_of_quota());
}

void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How long a thread spins before it sleeps: operations of one layer follow each other within
// microseconds, and waking a sleeping thread costs more than most of them.
constexpr int kSpinRounds = 20000;

}  // namespace

struct ThreadPool::State {
  int num_threads = 1;
  std::vector<std::thread> workers;
  const std::function<void(int)>* body = nullptr;
  std::atomic<uint64_t> generation{0};
  std::atomic<int> unfinished{0};
  std::atomic<bool> stopping{false};
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<int> sleepers{0};
  std::atomic<int> barrier_arrived{0};
  std::atomic<uint64_t> barrier_phase{0};

  void work(int thread) {
    uint64_t seen = 0;
    while (wait_for_work(seen)) {
      seen = generation.load(std::memory_order_acquire);
      (*body)(thread);
      unfinished.fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  bool has_work(uint64_t seen) const {
    return generation.load(std::memory_order_acquire) != seen || stopping.load();
  }

  // False when the pool stops.
  bool wait_for_work(uint64_t seen) {
    for (int i = 0; i < kSpinRounds && !has_work(seen); ++i) pause_briefly();
    if (!has_work(seen)) {
      std::unique_lock lock(mutex);
      sleepers.fetch_add(1);
      wake.wait(lock, [&] { return has_work(seen); });
      sleepers.fetch_sub(1);
    }
    return !stopping.load();
  }
};

ThreadPool::ThreadPool(int num_threads) : state_(std::make_unique<State>()) {
  state_->num_threads = num_threads > 0 ? num_threads : available_cores();
  for (int i = 1; i < state_->num_threads; ++i) {
    state_->workers.emplace_back([this, i] { state_->work(i); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->wake.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

int ThreadPool::num_threads() const {
  return state_->num_threads;
}

void ThreadPool::run(const std::function<void(int thread)>& body) {
  State& s = *state_;
  if (s.num_threads == 1) return body(0);
  check(s.unfinished.load() == 0, "one ThreadPool::run at a time");
  s.body = &body;
  s.unfinished.store(s.num_threads - 1, std::memory_order_release);
  {
    std::lock_guard lock(s.mutex);
    s.generation.fetch_add(1, std::memory_order_acq_rel);
  }
  if (s.sleepers.load() > 0) s.wake.notify_all();
  body(0);
  for (int i = 0; s.unfinished.load(std::memory_order_acquire) > 0; ++i) {
    if (i < kSpinRounds) {
      pause_briefly();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::for_each(int64_t count,
                          int64_t grain,
                          const std::function<void(int64_t, int64_t, int)>& body) {
  if (count <= grain || num_threads() == 1) {
    if (count > 0) body(0, count, 0);
    return;
  }
  std::atomic<int64_t> next{0};
  run([&](int thread) {
    for (int64_t begin = next.fetch_add(grain); begin < count; begin = next.fetch_add(grain)) {
      body(begin, std::min(begin + grain, count), thread);
    }
  });
}

void ThreadPool::barrier() {
  State& s = *state_;
  if (s.num_threads == 1) return;
  uint64_t phase = s.barrier_phase.load(std::memory_order_acquire);
  if (s.barrier_arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == s.num_threads) {
    s.barrier_arrived.store(0, std::memory_order_relaxed);
    s.barrier_phase.fetch_add(1, std::memory_order_acq_rel);
    return;
  }
  for (int i = 0; s.barrier_phase.load(std::memory_order_acquire) == phase; ++i) {
    if (i < kSpinRounds) {
      pause_briefly();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace droidspeak
