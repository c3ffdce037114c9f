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

// A word that says all about the current job: its number, whether workers may still join it, and
// how many are at work.
constexpr uint64_t kJobShift = 17;
constexpr uint64_t kOpen = uint64_t{1} << 16;
constexpr uint64_t kActive = kOpen - 1;

template <class Condition>
void spin_until(Condition is_met) {
  for (int i = 0; !is_met(); ++i) {
    if (i < kSpinRounds) {
      pause_briefly();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) cores = CPU_COUNT(&set);
  return std::min(cores, cores_of_quota());
}

struct ThreadPool::State {
  int num_threads = 1;
  std::vector<std::thread> workers;

  // The job: `body` on every thread, or else chunks of [0, count) for `chunk_body`.
  const std::function<void(int)>* body = nullptr;
  const std::function<void(int64_t, int64_t, int)>* chunk_body = nullptr;
  int64_t count = 0;
  int64_t grain = 1;
  std::atomic<int64_t> next{0};

  std::atomic<uint64_t> word{0};
  std::atomic<int> finished{0};
  std::atomic<bool> stopping{false};
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<int> sleepers{0};
  std::atomic<int> barrier_arrived{0};
  std::atomic<uint64_t> barrier_phase{0};

  void work(int thread) {
    uint64_t seen = 0;
    while (wait_for_job(seen)) {
      uint64_t current = word.load(std::memory_order_acquire);
      seen = current >> kJobShift;
      while ((current & kOpen) != 0 && current >> kJobShift == seen) {
        if (!word.compare_exchange_weak(current, current + 1, std::memory_order_acq_rel)) continue;
        do_job(thread);
        finished.fetch_add(1, std::memory_order_acq_rel);
        word.fetch_sub(1, std::memory_order_acq_rel);
        break;
      }
    }
  }

  void do_job(int thread) {
    if (body != nullptr) return (*body)(thread);
    for (int64_t begin = next.fetch_add(grain); begin < count; begin = next.fetch_add(grain)) {
      (*chunk_body)(begin, std::min(begin + grain, count), thread);
    }
  }

  bool has_job(uint64_t seen) const {
    return word.load(std::memory_order_acquire) >> kJobShift != seen || stopping.load();
  }

  // False when the pool stops.
  bool wait_for_job(uint64_t seen) {
    for (int i = 0; i < kSpinRounds && !has_job(seen); ++i) pause_briefly();
    if (!has_job(seen)) {
      std::unique_lock lock(mutex);
      sleepers.fetch_add(1);
      wake.wait(lock, [&] { return has_job(seen); });
      sleepers.fetch_sub(1);
    }
    return !stopping.load();
  }

  void open_job() {
    const uint64_t current = word.load(std::memory_order_acquire);
    check((current & (kOpen | kActive)) == 0, "one job of a ThreadPool at a time");
    finished.store(0, std::memory_order_relaxed);
    {
      std::lock_guard lock(mutex);
      word.store(((current >> kJobShift) + 1) << kJobShift | kOpen, std::memory_order_release);
    }
    if (sleepers.load() > 0) wake.notify_all();
  }

  // Workers that have not come yet need not come any more.
  void close_job() {
    word.fetch_and(~kOpen, std::memory_order_acq_rel);
    spin_until([&] { return (word.load(std::memory_order_acquire) & kActive) == 0; });
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
  s.body = &body;
  s.open_job();
  body(0);
  spin_until([&] { return s.finished.load(std::memory_order_acquire) == s.num_threads - 1; });
  s.close_job();
}

void ThreadPool::for_each(int64_t count,
                          int64_t grain,
                          const std::function<void(int64_t, int64_t, int)>& body) {
  State& s = *state_;
  if (count <= grain || s.num_threads == 1) {
    if (count > 0) body(0, count, 0);
    return;
  }
  s.body = nullptr;
  s.chunk_body = &body;
  s.count = count;
  s.grain = grain;
  s.next.store(0, std::memory_order_relaxed);
  s.open_job();
  s.do_job(0);
  s.close_job();
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
  spin_until([&] { return s.barrier_phase.load(std::memory_order_acquire) != phase; });
}

}  // namespace droidspeak
