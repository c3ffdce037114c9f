#include "machine_limits.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <vector>

#include "bench_clock.h"
#include "device/thread_pool.h"

namespace droidspeak::bench {
namespace {

constexpr int kChains = 12;
constexpr int64_t kRounds = 4'000'000;

using Vector = float __attribute__((vector_size(32)));

// Twelve independent chains hide the latency of the multiply-add.
#if defined(__x86_64__)
__attribute__((target("avx2,fma")))
#endif
float spin_fma(float seed) {
  Vector acc[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) acc[i] = Vector{} + seed * static_cast<float>(i);
  const Vector x = Vector{} + 0.9999999f;
  for (int64_t round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
#if defined(__x86_64__)
      asm("vfmadd213ps %1, %1, %0" : "+x"(acc[i]) : "x"(x));
#else
      acc[i] = acc[i] * x + x;
#endif
    }
  }
  float sum = 0;
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sum += acc[i][0];
  return sum;
}

}  // namespace

double fma_gflops(int num_threads) {
  ThreadPool pool(num_threads);
  double best = 0;
  std::atomic<float> sink{0};
  for (int repeat = 0; repeat < 5; ++repeat) {
    BenchClock watch(num_threads);
    pool.run([&](int thread) { sink = spin_fma(static_cast<float>(thread)); });
    const double flops = 2.0 * 8 * kChains * static_cast<double>(kRounds) * num_threads;
    best = std::max(best, flops / watch.ms() / 1e6);
  }
  return best;
}

double read_gigabytes(int num_threads) {
  ThreadPool pool(num_threads);
  const size_t size = size_t{96} << 20;
  std::vector<std::vector<uint64_t>> memory(static_cast<size_t>(num_threads));
  for (auto& part : memory) part.assign(size / 8, 1);
  double best = 0;
  std::atomic<uint64_t> sink{0};
  for (int repeat = 0; repeat < 7; ++repeat) {
    BenchClock watch(num_threads);
    pool.run([&](int thread) {
      const auto& part = memory[static_cast<size_t>(thread)];
      uint64_t sums[8] = {};
      for (size_t i = 0; i < part.size(); i += 8) {
        for (size_t j = 0; j < 8; ++j) sums[j] += part[i + j];
      }
      sink += std::accumulate(sums, sums + 8, uint64_t{0});
    });
    best = std::max(best, static_cast<double>(size) * num_threads / watch.ms() / 1e6);
  }
  return best;
}

}  // namespace droidspeak::bench
