// The kernels behind attention_gathered.h. One thread brings K and V to shared memory, two groups
// of four warps attend 64 packed rows each; while the tensor cores add up the values of one step,
// the scores of the next become weights.
#pragma once

#include <cmath>

#include "ops/cuda/attention/attention_gathered_work.cuh"
#include "ops/cuda/device_code/bulk_copy.cuh"
#include "ops/cuda/device_code/chain.cuh"
#include "ops/cuda/device_code/tensor_core.cuh"
#include "ops/cuda/device_code/warpgroup.cuh"

namespace droidspeak::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

inline constexpr int kGatheredStages = 2;
inline constexpr uint32_t kPanelBytes = kGatheredKeys * kPanelRowBytes;
inline constexpr uint32_t kStepBytes = 2 * kPanelBytes;  // of K or V

// K and V of a step are two panels each: the first 64 columns, then the others.
struct GatheredTiles {
  unsigned char q[2][2][64 * kPanelRowBytes];  // [rows of a group of warps][panel]
  unsigned char k[kGatheredStages][kStepBytes];
  unsigned char v[kGatheredStages][kStepBytes];
};

struct GatheredBarriers {
  CopyBarrier k_is_full[kGatheredStages];
  CopyBarrier v_is_full[kGatheredStages];
  CopyBarrier k_is_free[kGatheredStages];
  CopyBarrier v_is_free[kGatheredStages];
};

// Stages in turn; a stage's barriers change parity every time round.
struct GatheredTurn {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    if (++stage < kGatheredStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// One thread brings all steps of a block's run.
__device__ inline void bring_keys(const GatheredTask& task,
                                  const GatheredWork& work,
                                  GatheredTiles& tiles,
                                  GatheredBarriers& barriers) {
  const int32_t last_block = (task.length - 1) / kBlockTokens;
  GatheredTurn turn;
  for (GatheredSpan span(work, task.num_kv_heads, static_cast<int32_t>(blockIdx.x));
       span.has_steps(); span.next(work, task.num_kv_heads)) {
    for (int32_t step = span.begin; step < span.end; ++step) {
      int32_t rows[2];
      for (int i = 0; i < 2; ++i) {
        const int32_t block = task.blocks[min(2 * step + i, last_block)];
        rows[i] = (block * task.num_kv_heads + span.head) * kBlockTokens;
      }
      auto bring = [&](CopyBarrier& is_free, CopyBarrier& is_full, const CUtensorMap& map,
                       unsigned char* target) {
        is_free.wait(turn.parity ^ 1);
        is_full.expect(kStepBytes);
        for (uint32_t panel = 0; panel < 2; ++panel) {
          for (uint32_t i = 0; i < 2; ++i)
            is_full.copy_panel(map, target + panel * kPanelBytes + i * (kPanelBytes / 2),
                               static_cast<int32_t>(64 * panel), rows[i]);
        }
      };
      bring(barriers.k_is_free[turn.stage], barriers.k_is_full[turn.stage], task.k,
            tiles.k[turn.stage]);
      bring(barriers.v_is_free[turn.stage], barriers.v_is_full[turn.stage], task.v,
            tiles.v[turn.stage]);
      turn.advance();
    }
  }
}

// 64 packed rows of a tile, in a group of four warps.
class GatheredRows {
 public:
  __device__ GatheredRows(const GatheredTask& task,
                          const GatheredWork& work,
                          GatheredTiles& tiles,
                          GatheredBarriers& barriers)
      : task_(task), work_(work), tiles_(tiles), barriers_(barriers) {
    group_ = static_cast<int>(threadIdx.x) / 128 - 1;
    thread_ = static_cast<int>(threadIdx.x) % 128;
    lane_ = thread_ % 32;
  }

  __device__ void run() {
    for (GatheredSpan span(work_, task_.num_kv_heads, static_cast<int32_t>(blockIdx.x));
         span.has_steps(); span.next(work_, task_.num_kv_heads)) {
      begin(span);
      // The rows' own last step; the other group of warps may go further.
      const int32_t highest = work_.position_of(first_ + 63);
      const int32_t end = min(span.end, highest / kGatheredKeys + 1);
      attend(span.begin, max(end, span.begin));
      for (int32_t step = max(end, span.begin); step < span.end; ++step) pass_by();
      finish(span);
    }
  }

 private:
  static constexpr int kScores = kGatheredKeys / 2;  // of a thread, two rows

  __device__ int row_of(int half) const { return thread_ / 32 * 16 + lane_ / 4 + 8 * half; }

  __device__ void begin(const GatheredSpan& span) {
    first_ = span.tile * kGatheredRows + 64 * group_;
    load_q(span.head);
    lowest_ = work_.position_of(first_);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      position_[half] = work_.position_of(first_ + row_of(half));
      maximum_[half] = -INFINITY;
      total_[half] = 0;
    }
#pragma unroll
    for (float& sum : sums_) sum = 0;
  }

  __device__ void load_q(int32_t kv_head) {
    sync_warpgroup(1 + group_);  // all have done with the rows before
#pragma unroll
    for (int i = thread_; i < 64 * kGatheredDim / 8; i += 128) {
      const int row = i / 16;
      const int chunk = i % 16;
      const int32_t packed = first_ + row;
      uint4 bits{0, 0, 0, 0};
      if (packed < task_.num_rows * task_.group) {
        const int32_t head = kv_head * task_.group + packed % task_.group;
        bits = *reinterpret_cast<const uint4*>(task_.q + packed / task_.group * task_.q_stride +
                                               head * kGatheredDim + 8 * chunk);
      }
      unsigned char* panel = tiles_.q[group_][chunk / 8];
      *reinterpret_cast<uint4*>(panel + row * kPanelRowBytes + (chunk % 8 ^ row % 8) * 16) = bits;
    }
    fence_before_products();
    sync_warpgroup(1 + group_);
  }

  // Steps [begin, end).
  __device__ void attend(int32_t begin, int32_t end) {
    if (begin == end) return;
    float scores[kScores];
    uint32_t weights[kScores / 2];
    float fade[2];
    begin_scores(scores);
    wait_products<0>();
    settle(scores);
    release(barriers_.k_is_free[turn_.stage]);
    soften(begin, scores, fade);
    pack(scores, weights);
    for (int32_t step = begin + 1; step < end; ++step) {
      const GatheredTurn values = turn_;
      turn_.advance();
      begin_scores(scores);
      begin_sums(step - 1, values, weights);
      wait_products<1>();
      settle(scores);
      release(barriers_.k_is_free[turn_.stage]);
      soften(step, scores, fade);
      wait_products<0>();
      settle(sums_);
      settle(weights);
      release(barriers_.v_is_free[values.stage]);
#pragma unroll
      for (int i = 0; i < kGatheredDim / 2; ++i) sums_[i] *= fade[i / 2 % 2];
      pack(scores, weights);
    }
    begin_sums(end - 1, turn_, weights);
    wait_products<0>();
    settle(sums_);
    release(barriers_.v_is_free[turn_.stage]);
    turn_.advance();
  }

  // A step whose keys lie behind all rows of this group.
  __device__ void pass_by() {
    barriers_.k_is_full[turn_.stage].wait(turn_.parity);
    release(barriers_.k_is_free[turn_.stage]);
    barriers_.v_is_full[turn_.stage].wait(turn_.parity);
    release(barriers_.v_is_free[turn_.stage]);
    turn_.advance();
  }

  __device__ void release(CopyBarrier& is_free) const {
    if (lane_ == 0) is_free.arrive();
  }

  __device__ void begin_scores(float (&scores)[kScores]) {
    barriers_.k_is_full[turn_.stage].wait(turn_.parity);
    settle(scores);
    begin_products();
#pragma unroll
    for (uint32_t i = 0; i < kGatheredDim / 16; ++i) {
      const uint32_t column = i % 4 * 32;
      const uint64_t q = describe_panel(shared_address(tiles_.q[group_][i / 4]) + column, 0);
      const uint64_t k =
          describe_panel(shared_address(tiles_.k[turn_.stage]) + i / 4 * kPanelBytes + column, 0);
      multiply_shared(scores, q, k, i > 0);
    }
    commit_products();
  }

  __device__ void begin_sums(int32_t step,
                             const GatheredTurn& turn,
                             uint32_t (&weights)[kScores / 2]) {
    barriers_.v_is_full[turn.stage].wait(turn.parity);
    if ((step + 1) * kGatheredKeys > task_.length) clear_behind(step, tiles_.v[turn.stage]);
    settle(sums_);
    settle(weights);
    begin_products();
#pragma unroll
    for (uint32_t i = 0; i < kGatheredKeys / 16; ++i) {
      const uint64_t v = describe_panel(
          shared_address(tiles_.v[turn.stage]) + i * 16 * kPanelRowBytes, kPanelBytes);
      multiply_registers(sums_, weights + 4 * i, v, 1);
    }
    commit_products();
  }

  // What lies behind the last key may be anything, and is still multiplied, by 0. Both groups of
  // warps write the same zeros.
  __device__ void clear_behind(int32_t step, unsigned char* v) {
    const int32_t there = task_.length - step * kGatheredKeys;
    for (int32_t i = there * 16 + thread_; i < kGatheredKeys * 16; i += 128) {
      unsigned char* panel = v + i % 16 / 8 * kPanelBytes;
      *reinterpret_cast<uint4*>(panel + i / 16 * kPanelRowBytes + i % 8 * 16) = uint4{0, 0, 0, 0};
    }
    fence_before_products();
    sync_warpgroup(1 + group_);
  }

  // Scores become weights relative to the largest so far; fade: what the sums so far are to be
  // multiplied with.
  __device__ void soften(int32_t step, float (&scores)[kScores], float (&fade)[2]) {
    if ((step + 1) * kGatheredKeys > lowest_ + 1) mask(step, scores);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = maximum_[half];
#pragma unroll
      for (int n = 0; n < kScores / 4; ++n)
        largest = fmaxf(largest, fmaxf(scores[4 * n + 2 * half], scores[4 * n + 2 * half + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      const float base = largest == -INFINITY ? 0.0f : largest * task_.scale;
      fade[half] = power_of_2(maximum_[half] * task_.scale - base);
      maximum_[half] = largest;
      float total = 0;
#pragma unroll
      for (int n = 0; n < kScores / 4; ++n) {
#pragma unroll
        for (int i = 4 * n + 2 * half; i < 4 * n + 2 * half + 2; ++i) {
          scores[i] = power_of_2(scores[i] * task_.scale - base);
          total += scores[i];
        }
      }
      total_[half] = total_[half] * fade[half] + total;
    }
  }

  __device__ static float power_of_2(float exponent) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
    return power;
  }

  __device__ void mask(int32_t step, float (&scores)[kScores]) const {
    const int32_t first_key = step * kGatheredKeys + lane_ % 4 * 2;
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      if (first_key + i / 4 * 8 + i % 2 > position_[i / 2 % 2]) scores[i] = -INFINITY;
    }
  }

  __device__ static void pack(const float (&scores)[kScores], uint32_t (&weights)[kScores / 2]) {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i)
      weights[i] = pack_pair<__nv_bfloat16>(scores[2 * i], scores[2 * i + 1]);
  }

  __device__ void finish(const GatheredSpan& span) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = total_[half];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      if (span.is_whole()) {
        store_result(span, half, total);
      } else {
        store_part(span, half, total);
      }
    }
  }

  __device__ void store_result(const GatheredSpan& span, int half, float total) const {
    const int32_t packed = first_ + row_of(half);
    if (packed >= task_.num_rows * task_.group) return;
    const int32_t head = span.head * task_.group + packed % task_.group;
    __nv_bfloat16* row = task_.out + packed / task_.group * task_.out_stride + head * kGatheredDim;
#pragma unroll
    for (int n = 0; n < kGatheredDim / 8; ++n) {
      const int i = 4 * n + 2 * half;
      *reinterpret_cast<uint32_t*>(row + 8 * n + lane_ % 4 * 2) =
          pack_pair<__nv_bfloat16>(sums_[i] / total, sums_[i + 1] / total);
    }
  }

  __device__ void store_part(const GatheredSpan& span, int half, float total) const {
    const int64_t row = int64_t{span.slot} * kGatheredRows + 64 * group_ + row_of(half);
#pragma unroll
    for (int n = 0; n < kGatheredDim / 8; ++n) {
      const int i = 4 * n + 2 * half;
      *reinterpret_cast<float2*>(task_.sums + row * kGatheredDim + 8 * n + lane_ % 4 * 2) = {
          sums_[i], sums_[i + 1]};
    }
    if (lane_ % 4 == 0) task_.totals[row] = {maximum_[half] * task_.scale, total};
  }

  const GatheredTask& task_;
  const GatheredWork& work_;
  GatheredTiles& tiles_;
  GatheredBarriers& barriers_;
  GatheredTurn turn_;
  int group_;  // of warps
  int thread_;
  int lane_;
  int32_t first_ = 0;  // packed row
  int32_t lowest_ = 0;
  int32_t position_[2];
  float maximum_[2];
  float total_[2];
  float sums_[kGatheredDim / 2];
};

#endif

// Without its body for other architectures: it then has no shared memory of its own.
__global__ void __launch_bounds__(kGatheredThreads, 1)
    attend_gathered(const __grid_constant__ GatheredTask task) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr uint32_t kReaders = 8;  // warps
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ int32_t steps[kMostGatheredTiles];
  __shared__ GatheredBarriers barriers;
  auto& tiles = *reinterpret_cast<GatheredTiles*>(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kGatheredStages; ++stage) {
      barriers.k_is_full[stage].init();
      barriers.v_is_full[stage].init();
      barriers.k_is_free[stage].init(kReaders);
      barriers.v_is_free[stage].init(kReaders);
    }
    fence_before_copies();
  }
  const GatheredWork work(task, steps);  // ends with a barrier
  wait_for_previous();
  if (threadIdx.x < 128) {
    give_up_registers<40>();
    if (threadIdx.x == 0) bring_keys(task, work, tiles, barriers);
  } else {
    take_registers<232>();
    GatheredRows rows(task, work, tiles, barriers);
    rows.run();
  }
#endif
}

// Tiles that several blocks share: [tile and head, 32 rows] = blockIdx. A warp for a row at a time.
__global__ void __launch_bounds__(256) combine_gathered(const __grid_constant__ GatheredTask task) {
  constexpr int kRows = 32;
  __shared__ int32_t steps[kMostGatheredTiles];
  const GatheredWork work(task, steps);
  wait_for_previous();
  const int32_t tile = static_cast<int32_t>(blockIdx.x) / task.num_kv_heads;
  const int32_t kv_head = static_cast<int32_t>(blockIdx.x) % task.num_kv_heads;
  int64_t first = 0;
  for (int32_t before = 0; before < tile; ++before) first += work.steps_of(before);
  first = first * task.num_kv_heads + int64_t{kv_head} * work.steps_of(tile);
  const int32_t begin = work.part_of(first);
  const int32_t end = work.part_of(first + work.steps_of(tile) - 1) + 1;
  if (end - begin == 1) return;
  auto slot_of = [&](int32_t part) { return 2 * part + (work.begin_of(part) >= first ? 0 : 1); };

  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int row = static_cast<int>(threadIdx.x) / 32; row < kRows; row += 8) {
    const int32_t in_tile = static_cast<int32_t>(blockIdx.y) * kRows + row;
    const int32_t packed = tile * kGatheredRows + in_tile;
    if (packed >= task.num_rows * task.group) return;
    float largest = -INFINITY;
    float total = 0;
    float4 sum{0, 0, 0, 0};
    for (int32_t part = begin; part < end; ++part) {
      if (work.begin_of(part) == work.begin_of(part + 1)) continue;  // fewer steps than parts
      const int64_t index = int64_t{slot_of(part)} * kGatheredRows + in_tile;
      const float2 found = task.totals[index];
      if (found.x == -INFINITY) continue;
      const float4 more = reinterpret_cast<const float4*>(task.sums + index * kGatheredDim)[lane];
      const float peak = fmaxf(largest, found.x);
      const float old = exp2f(largest - peak);
      const float fade = exp2f(found.x - peak);
      largest = peak;
      total = total * old + found.y * fade;
      sum = {sum.x * old + more.x * fade, sum.y * old + more.y * fade, sum.z * old + more.z * fade,
             sum.w * old + more.w * fade};
    }
    const int32_t head = kv_head * task.group + packed % task.group;
    __nv_bfloat16* out =
        task.out + packed / task.group * task.out_stride + head * kGatheredDim + 4 * lane;
    *reinterpret_cast<uint2*>(out) = {pack_pair<__nv_bfloat16>(sum.x / total, sum.y / total),
                                      pack_pair<__nv_bfloat16>(sum.z / total, sum.w / total)};
  }
}

}  // namespace droidspeak::cuda
