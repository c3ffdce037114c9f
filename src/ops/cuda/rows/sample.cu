#include <cfloat>
#include <climits>

#include "device/cuda/cuda_check.h"
#include "ops/cuda/rows/sample.h"
#include "ops/cuda/rows/token_cut.cuh"

namespace droidspeak::cuda {
namespace {

struct Arguments {
  float* logits;
  float* copies;
  int64_t stride;
  int columns;
  bool is_aligned;
  const SampleTask* tasks;
  const std::byte* lists;
  SampleResult* results;
};

template <class T>
__device__ const T* list_of(const Arguments& a, const ListPlace& place) {
  return reinterpret_cast<const T*>(a.lists + place.offset);
}

// What is not finite wins, so that it is noticed.
__device__ Best best_of_all(const LogitRow& row, SampleShared& shared) {
  Best best{-INFINITY, row.columns};
  for_each_token(row, [&](int token, float logit) {
    best = better(best, isfinite(logit) ? Best{logit, token} : Best{INFINITY, -1});
  });
  return block_best(best, shared);
}

__device__ Best best_of_allowed(const LogitRow& row, SampleShared& shared) {
  Best best{-INFINITY, row.columns};
  for_each_token(row, [&](int token, float logit) { best = better(best, Best{logit, token}); });
  return block_best(best, shared);
}

// log of the sum of exp(logit).
__device__ double log_sum(const LogitRow& row, float best, SampleShared& shared) {
  uint64_t sum = 0;
  for_each_token(
      row, [&](int, float logit) { sum += weight_of(__fsub_rn(logit, best), shared.powers); });
  const uint64_t total = block_scan(sum, shared).total;
  return static_cast<double>(best) + log(static_cast<double>(total) * 0x1p-44);
}

__device__ void write_top(const LogitRow& row,
                          float best,
                          double normalizer,
                          int num_top,
                          SampleResult& result,
                          SampleShared& shared) {
  const Ranking ranking{row, best, 1, Ranking::By::kLogit};
  const Wanted wanted{Wanted::Measure::kCount, static_cast<uint32_t>(num_top), 1};
  const Cut cut = narrow(ranking, {0, INT_MAX}, wanted, shared);
  const int count = gather_sorted(ranking, cut, {}, shared);
  const auto place = static_cast<int>(threadIdx.x);
  if (place < min(count, num_top)) {
    const Cut entry = unpacked(shared.gathered[place]);
    result.top[place] = {entry.token,
                         static_cast<float>(static_cast<double>(value_of(entry.key)) - normalizer)};
  }
  __syncthreads();
}

__device__ float within_range(float value) {
  return fmaxf(-FLT_MAX, fminf(value, FLT_MAX));
}

// Bias, penalties, what is not allowed: each in place, in the order of ops/sampling.h.
__device__ void change(const Arguments& a, const SampleTask& task, const LogitRow& row) {
  const auto thread = static_cast<int>(threadIdx.x);
  const auto* biases = list_of<TokenBias>(a, task.biases);
  for (int i = thread; i < task.biases.count; i += kSampleThreads) {
    const auto [token, bias] = biases[i];
    if (token < 0 || token >= row.columns) continue;
    row.logits[token] = within_range(__fadd_rn(row.logits[token], bias));
  }
  __syncthreads();
  const auto* seen = list_of<uint32_t>(a, task.seen);
  for (int i = thread; task.seen.count > 0 && i < row.columns; i += kSampleThreads) {
    if ((seen[i / 32] >> (i % 32) & 1) == 0) continue;
    const float logit = row.logits[i];
    row.logits[i] = within_range(logit > 0 ? __fdiv_rn(logit, task.repetition_penalty)
                                           : __fmul_rn(logit, task.repetition_penalty));
  }
  __syncthreads();
  const auto* counts = list_of<TokenCount>(a, task.counts);
  for (int i = thread; i < task.counts.count; i += kSampleThreads) {
    const auto [token, count] = counts[i];
    const float penalty = __fadd_rn(__fmul_rn(task.frequency_penalty, static_cast<float>(count)),
                                    task.presence_penalty);
    row.logits[token] = within_range(__fsub_rn(row.logits[token], penalty));
  }
  __syncthreads();
  const auto* allowed = list_of<uint32_t>(a, task.allowed);
  for (int i = thread; task.allowed.count > 0 && i < row.columns; i += kSampleThreads) {
    if ((allowed[i / 32] >> (i % 32) & 1) == 0) row.logits[i] = -INFINITY;
  }
  __syncthreads();
}

__device__ Cut cut_of(const Ranking& ranking, const SampleTask& task, SampleShared& shared) {
  Cut cut{key_of(task.floor), INT_MAX};
  if (task.top_k > 0) {
    const Wanted best{Wanted::Measure::kCount, static_cast<uint32_t>(task.top_k), 1};
    cut = narrow(ranking, cut, best, shared);
  }
  if (task.top_p < 1) cut = narrow(ranking, cut, {Wanted::Measure::kWeight, 0, task.top_p}, shared);
  return cut;
}

// The token at which the sum of the kept weights, over the threads and their tokens in order, goes
// beyond `uniform` of their total.
__device__ int draw(const Ranking& ranking, const Cut& cut, double uniform, SampleShared& shared) {
  auto weight = [&](int token, float logit) -> uint64_t {
    const float scaled = ranking.scaled(logit);
    const bool is_kept = cut.keeps(ranking.key(logit, scaled), token);
    return is_kept ? weight_of(scaled, shared.powers) : 0;
  };
  uint64_t own = 0;
  for_each_token(ranking.row, [&](int token, float logit) { own += weight(token, logit); });
  const Scanned scanned = block_scan(own, shared);
  const auto drawn = static_cast<uint64_t>(uniform * static_cast<double>(scanned.total));
  const uint64_t target = min(drawn, scanned.total - 1);
  if (scanned.before <= target && target < scanned.before + own) {
    shared.found = threadIdx.x;
    shared.found_before = scanned.before;
  }
  __syncthreads();
  const auto thread = static_cast<int>(shared.found);
  uint64_t before = shared.found_before;
  __syncthreads();
  // One warp looks at the tokens of that thread, 32 at a time.
  if (threadIdx.x < 32) {
    const int columns = ranking.row.columns;
    for (int first = 0; token_of(thread, first) < columns; first += 32) {
      const int token = token_of(thread, first + static_cast<int>(threadIdx.x));
      const uint64_t mine = token < columns ? weight(token, ranking.row.logits[token]) : 0;
      const uint64_t end = before + warp_scan(mine);
      if (end - mine <= target && target < end) shared.found = static_cast<uint64_t>(token);
      before = __shfl_sync(~0u, end, 31);
      if (target < before) break;
    }
  }
  __syncthreads();
  return static_cast<int>(shared.found);
}

__global__ void __launch_bounds__(kSampleThreads)
    sample_kernel(const __grid_constant__ Arguments a) {
  __shared__ SampleShared shared;
  const SampleTask task = a.tasks[blockIdx.x];
  SampleResult& result = a.results[blockIdx.x];
  const LogitRow row{a.logits + task.row * a.stride, a.columns, a.is_aligned};
  fill_powers(shared);
  Best best = best_of_all(row, shared);
  if (best.index < 0) {
    if (threadIdx.x == 0) result.token = -1;
    return;
  }
  double normalizer = 0;
  if (task.num_top >= 0) normalizer = log_sum(row, best.value, shared);
  if (task.num_top > 0) write_top(row, best.value, normalizer, task.num_top, result, shared);
  const float* raw = row.logits;
  if (task.copy >= 0) {
    float* copy = a.copies + static_cast<int64_t>(task.copy) * a.columns;
    for_each_token(row, [&](int token, float logit) { copy[token] = logit; });
    raw = copy;
  }
  if (task.biases.count + task.seen.count + task.counts.count + task.allowed.count > 0) {
    __syncthreads();
    change(a, task, row);
    best = best_of_allowed(row, shared);
  }
  if (best.value == -INFINITY) {  // nothing is allowed
    if (threadIdx.x == 0) result.token = -1;
    return;
  }
  int token = best.index;
  Cut cut{0, 0};
  if (task.temperature > 0) {
    const Ranking ranking{row, best.value, task.temperature, Ranking::By::kScaled};
    cut = cut_of(ranking, task, shared);
    token = draw(ranking, cut, task.uniform, shared);
  }
  if (threadIdx.x != 0) return;
  result.token = token;
  result.cut_value = value_of(cut.key);
  result.cut_token = cut.token;
  if (task.num_top >= 0)
    result.logprob = static_cast<float>(static_cast<double>(raw[token]) - normalizer);
}

}  // namespace

void sample(cudaStream_t stream, const SampleLaunch& launch) {
  const TensorView& logits = launch.logits;
  const Arguments arguments{.logits = logits.f32(),
                            .copies = static_cast<float*>(launch.copies.data),
                            .stride = logits.row_stride,
                            .columns = static_cast<int>(logits.columns),
                            .is_aligned = logits.row_stride % 4 == 0 &&
                                          reinterpret_cast<uintptr_t>(logits.data) % 16 == 0,
                            .tasks = launch.tasks,
                            .lists = launch.lists,
                            .results = launch.results};
  sample_kernel<<<static_cast<unsigned>(launch.num_tasks), kSampleThreads, 0, stream>>>(arguments);
  check_launch("sample tokens");
}

}  // namespace droidspeak::cuda
