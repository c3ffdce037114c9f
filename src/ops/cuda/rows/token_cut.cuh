// The best tokens of a row without sorting it: a histogram tells in which bin the last of them
// lies, and what lies there is sorted, or divided again while it is too much.
#pragma once

#include "ops/cuda/rows/sample_row.cuh"

namespace droidspeak::cuda {

// An order of a row's tokens: higher value, then lower token.
struct Ranking {
  enum class By { kScaled, kLogit };

  LogitRow row;
  float best;         // logit
  float temperature;  // of scaled logits, the best of which is 0
  By by;

  __device__ float scaled(float logit) const {
    return __fdiv_rn(__fsub_rn(logit, best), temperature);
  }

  __device__ uint32_t key(float logit, float scaled) const {
    return key_of(by == By::kScaled ? scaled : logit);
  }
};

// Leaves a token and everything better.
struct Cut {
  uint32_t key;
  int32_t token;

  __device__ bool keeps(uint32_t other_key, int other_token) const {
    return other_key > key || (other_key == key && other_token <= token);
  }
};

// How many tokens are wanted: a number of them, or a share of their weights.
struct Wanted {
  enum class Measure { kCount, kWeight };

  Measure measure;
  uint32_t count;
  float share;

  __device__ uint64_t need(uint64_t total) const {
    if (measure == Measure::kCount) return count;
    const double part = ceil(static_cast<double>(share) * static_cast<double>(total));
    return max(uint64_t{1}, min(total, static_cast<uint64_t>(part)));
  }
};

// Tokens among which the last wanted one lies.
struct Range {
  static constexpr int kLevels = 4;  // the first by value, which spreads; the rest by bits of keys

  int level = 0;
  int near_bin = 0;  // of level 0
  uint32_t prefix = 0;
  uint32_t mask = 0;

  static __device__ int near_bin_of(float scaled) {
    const float place = -scaled * 64;
    return place < kBins - 1 ? static_cast<int>(place) : kBins - 1;
  }

  static __device__ int shift_of(int level) { return level == 1 ? 21 : level == 2 ? 10 : 0; }

  static __device__ uint32_t bits_of(int level) { return level == 3 ? 1023 : 2047; }

  __device__ bool has(float scaled, uint32_t key) const {
    return level == 0 || (near_bin_of(scaled) == near_bin && (key & mask) == prefix);
  }

  // Lower bins are better.
  __device__ int bin_of(float scaled, uint32_t key) const {
    if (level == 0) return near_bin_of(scaled);
    const uint32_t bits = bits_of(level);
    return static_cast<int>(bits - (key >> shift_of(level) & bits));
  }

  __device__ void enter(int bin) {
    if (level == 0) {
      near_bin = bin;
    } else {
      const uint32_t bits = bits_of(level);
      prefix |= (bits - static_cast<uint32_t>(bin)) << shift_of(level);
      mask |= bits << shift_of(level);
    }
    ++level;
  }
};

// body(token, scaled, key) for what is in the range and was not cut off.
template <class Body>
__device__ void for_each_kept(const Ranking& ranking,
                              const Cut& cut,
                              const Range& range,
                              const Body& body) {
  for_each_token(ranking.row, [&](int token, float logit) {
    const float scaled = ranking.scaled(logit);
    const uint32_t key = ranking.key(logit, scaled);
    if (cut.keeps(key, token) && range.has(scaled, key)) body(token, scaled, key);
  });
}

__device__ inline void add_to_bin(SampleShared& shared, int bin, uint64_t weight) {
  atomicAdd(&shared.counts[bin], 1u);
  if (weight == 0) return;
  const auto low = static_cast<uint32_t>(weight);
  const uint32_t old = atomicAdd(&shared.low[bin], low);
  const uint32_t high = static_cast<uint32_t>(weight >> 32) + (old + low < old ? 1u : 0u);
  if (high != 0) atomicAdd(&shared.high[bin], high);
}

// Far from the best one most tokens of a cold row lie in one bin: they are counted without it. What
// lies there weighs nothing.
__device__ inline void fill_bins(const Ranking& ranking,
                                 const Cut& cut,
                                 const Range& range,
                                 Wanted::Measure measure,
                                 SampleShared& shared) {
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kSampleThreads) {
    shared.counts[i] = 0;
    shared.low[i] = 0;
    shared.high[i] = 0;
  }
  if (threadIdx.x == 0) shared.far_count = 0;
  __syncthreads();
  uint32_t far_count = 0;
  for_each_kept(ranking, cut, range, [&](int, float scaled, uint32_t key) {
    const int bin = range.bin_of(scaled, key);
    if (range.level == 0 && bin == kBins - 1) {
      ++far_count;
    } else {
      add_to_bin(shared, bin,
                 measure == Wanted::Measure::kWeight ? weight_of(scaled, shared.powers) : 0);
    }
  });
  if (far_count > 0) atomicAdd(&shared.far_count, far_count);
  __syncthreads();
  if (threadIdx.x == 0) shared.counts[kBins - 1] += shared.far_count;
  __syncthreads();
}

// Of values two a thread, the first one at which their sum reaches `need`; and the sum before it.
__device__ inline void find_reached(
    uint64_t first, uint64_t second, const Scanned& scanned, uint64_t need, SampleShared& shared) {
  const uint64_t middle = scanned.before + first;
  if (scanned.before < need && need <= middle) {
    shared.found = 2 * threadIdx.x;
    shared.found_before = scanned.before;
  } else if (middle < need && need <= middle + second) {
    shared.found = 2 * threadIdx.x + 1;
    shared.found_before = middle;
  }
  __syncthreads();
}

// Tokens with their keys, best first.
__device__ inline uint64_t packed(uint32_t key, int token) {
  return static_cast<uint64_t>(key) << 32 | static_cast<uint32_t>(~token);
}

__device__ inline Cut unpacked(uint64_t entry) {
  return {static_cast<uint32_t>(entry >> 32), ~static_cast<int32_t>(static_cast<uint32_t>(entry))};
}

// Those of the range, sorted; there are at most kMostGathered. Returns how many.
__device__ inline int gather_sorted(const Ranking& ranking,
                                    const Cut& cut,
                                    const Range& range,
                                    SampleShared& shared) {
  __syncthreads();
  if (threadIdx.x == 0) shared.num_gathered = 0;
  __syncthreads();
  for_each_kept(ranking, cut, range, [&](int token, float, uint32_t key) {
    const uint32_t place = atomicAdd(&shared.num_gathered, 1u);
    if (place < kMostGathered) shared.gathered[place] = packed(key, token);
  });
  __syncthreads();
  const int count = min(static_cast<int>(shared.num_gathered), kMostGathered);
  int size = 2;
  while (size < count) size *= 2;
  for (int i = count + static_cast<int>(threadIdx.x); i < kMostGathered; i += kSampleThreads)
    shared.gathered[i] = 0;
  __syncthreads();
  for (int length = 2; length <= size; length *= 2) {
    for (int step = length / 2; step > 0; step /= 2) {
      for (int i = static_cast<int>(threadIdx.x); i < size; i += kSampleThreads) {
        const int other = i ^ step;
        if (other < i) continue;
        const uint64_t mine = shared.gathered[i];
        const uint64_t theirs = shared.gathered[other];
        if ((mine < theirs) != ((i & length) == 0)) continue;
        shared.gathered[i] = theirs;
        shared.gathered[other] = mine;
      }
      __syncthreads();
    }
  }
  return count;
}

__device__ inline Cut cut_in_sorted(uint64_t need,
                                    Wanted::Measure measure,
                                    int count,
                                    SampleShared& shared) {
  if (measure == Wanted::Measure::kCount) return unpacked(shared.gathered[need - 1]);
  auto weight = [&](int i) -> uint64_t {
    if (i >= count) return 0;
    return weight_of(value_of(unpacked(shared.gathered[i]).key), shared.powers);
  };
  const uint64_t first = weight(2 * static_cast<int>(threadIdx.x));
  const uint64_t second = weight(2 * static_cast<int>(threadIdx.x) + 1);
  find_reached(first, second, block_scan(first + second, shared), need, shared);
  return unpacked(shared.gathered[shared.found]);
}

// All of the range have one key, and are too many to be sorted: the `need`-th of them.
__device__ inline Cut cut_in_ties(
    const Ranking& ranking, const Cut& cut, uint32_t key, uint64_t need, SampleShared& shared) {
  const LogitRow& row = ranking.row;
  const int share = (row.columns + kSampleThreads - 1) / kSampleThreads;
  const int begin = static_cast<int>(threadIdx.x) * share;
  const int end = min(begin + share, row.columns);
  auto is_tie = [&](int token) {
    const float logit = row.logits[token];
    return ranking.key(logit, ranking.scaled(logit)) == key && cut.keeps(key, token);
  };
  uint64_t count = 0;
  for (int token = begin; token < end; ++token) count += is_tie(token) ? 1 : 0;
  const Scanned scanned = block_scan(count, shared);
  if (scanned.before < need && need <= scanned.before + count) {
    uint64_t missing = need - scanned.before;
    int token = begin - 1;
    while (missing > 0) missing -= is_tie(++token) ? 1 : 0;
    shared.found = static_cast<uint64_t>(token);
  }
  __syncthreads();
  return {key, static_cast<int32_t>(shared.found)};
}

// What `cut` leaves, narrowed to the fewest best tokens that are or weigh as much as is wanted.
// Weights are those of scaled logits.
__device__ inline Cut narrow(const Ranking& ranking,
                             const Cut& cut,
                             const Wanted& wanted,
                             SampleShared& shared) {
  const bool counts = wanted.measure == Wanted::Measure::kCount;
  Range range;
  uint64_t need = 0;
  while (range.level < Range::kLevels) {
    fill_bins(ranking, cut, range, wanted.measure, shared);
    auto measured = [&](int bin) -> uint64_t {
      if (counts) return shared.counts[bin];
      return static_cast<uint64_t>(shared.high[bin]) << 32 | shared.low[bin];
    };
    const uint64_t first = measured(2 * static_cast<int>(threadIdx.x));
    const uint64_t second = measured(2 * static_cast<int>(threadIdx.x) + 1);
    const Scanned scanned = block_scan(first + second, shared);
    if (range.level == 0) {
      need = wanted.need(scanned.total);
      if (counts && need >= scanned.total) return cut;
    }
    find_reached(first, second, scanned, need, shared);
    const auto bin = static_cast<int>(shared.found);
    need -= shared.found_before;
    const bool are_few = shared.counts[bin] <= kMostGathered;
    range.enter(bin);
    if (!are_few) continue;
    const int count = gather_sorted(ranking, cut, range, shared);
    return cut_in_sorted(need, wanted.measure, count, shared);
  }
  if (counts) return cut_in_ties(ranking, cut, range.prefix, need, shared);
  const uint64_t weight = weight_of(value_of(range.prefix), shared.powers);
  return cut_in_ties(ranking, cut, range.prefix, (need + weight - 1) / weight, shared);
}

}  // namespace droidspeak::cuda
