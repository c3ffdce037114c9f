// The weights of a warp on their way through shared memory, several steps ahead of their use. One
// lane has them copied, a piece of a strip at a time, so that loads take no registers, and a warp
// waits for nothing but the step that it needs.
#pragma once

#include "ops/cuda/device_code/bulk_copy.cuh"
#include "ops/cuda/quantized/strip_task.cuh"

namespace droidspeak::cuda {

// What a lane has of a step of a tile.
template <DType kDtype>
struct LaneStep {
  LaneChunk<kDtype> chunks[2][kStepChunks];  // of each strip
  uint32_t supers[2];
};

// Takes what a warp multiplies, in that order: its steps of a tile, then those of its next tile.
template <DType kDtype>
class StripRing {
 public:
  // A stage is what a warp needs of a step: a piece of both strips.
  __device__ StripRing(const StripTask& task, unsigned char* memory, CopyBarrier* barriers)
      : task_(task),
        place_(task),
        lane_(static_cast<int>(threadIdx.x) % 32),
        policy_(evict_first_policy()),
        tile_(place_.first_tile),
        step_(place_.share) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    memory_ = memory + warp * task.stages * kBytes;
    barriers_ = barriers + warp * task.stages;
  }

  // Begins with the first steps.
  __device__ void start() {
    if (lane_ == 0) {
      for (int i = 0; i < task_.stages; ++i) barriers_[i].init();
    }
    // A chunk that is not there is not copied: what lies there must be numbers, as inputs are 0.
    if (task_.weights.num_chunks % kStepChunks != 0) {
      for (int i = lane_ * 16; i < task_.stages * kBytes; i += 32 * 16)
        *reinterpret_cast<uint4*>(memory_ + i) = uint4{};
    }
    fence_before_copies();
    __syncwarp();
    for (int i = 0; i < task_.stages; ++i) fill(i);
  }

  __device__ __forceinline__ void take(LaneStep<kDtype>& out) {
    barriers_[next_].wait(parity_);
    const unsigned char* stage = memory_ + next_ * kBytes;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const unsigned char* strip = stage + which * kStripBytes;
#pragma unroll
      for (int i = 0; i < kStepChunks; ++i) {
        Chunk& chunk = out.chunks[which][i];
        chunk.low = *reinterpret_cast<const uint4*>(strip + (i * 32 + lane_) * 16);
        if constexpr (Chunk::kHighBits > 0)
          chunk.high = *reinterpret_cast<const typename Chunk::High*>(
              strip + kLow + (i * 32 + lane_) * Chunk::kHighBytes);
        chunk.scales = *reinterpret_cast<const typename Chunk::Scales*>(
            strip + kLow + kHigh + (i * kStripRows + lane_ / 4) * Chunk::kScaleBytes);
      }
      if constexpr (Chunk::kHasSupers)
        out.supers[which] = *reinterpret_cast<const uint32_t*>(strip + kLow + kHigh + kScales +
                                                               lane_ / 4 * sizeof(uint32_t));
    }
    __syncwarp();
    fill(next_);
    if (++next_ < task_.stages) return;
    next_ = 0;
    parity_ ^= 1;
  }

 private:
  using Chunk = LaneChunk<kDtype>;
  static constexpr int kLow = kStepChunks * static_cast<int>(Chunk::kFormat.low_bytes());
  static constexpr int kHigh = kStepChunks * static_cast<int>(Chunk::kFormat.high_bytes());
  static constexpr int kScales = kStepChunks * static_cast<int>(Chunk::kFormat.scale_bytes());
  static constexpr int kStripBytes = static_cast<int>(stage_bytes(kDtype)) / 2;
  static constexpr int kBytes = static_cast<int>(stage_bytes(kDtype));

  // The next step, if there is one, into a stage that has been read.
  __device__ __forceinline__ void fill(int stage) {
    if (tile_ >= task_.num_tiles) return;
    if (lane_ == 0) copy(stage);
    step_ += task_.split;
    if (step_ < task_.num_steps) return;
    step_ = place_.share;
    tile_ += place_.tile_step;
  }

  __device__ __forceinline__ void copy(int stage) {
    CopyBarrier& barrier = barriers_[stage];
    const StripPointers& from = task_.weights;
    const bool is_whole = step_ * kStepChunks + kStepChunks <= from.num_chunks;
    barrier.expect(is_whole ? kBytes : kBytes / 2);
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      unsigned char* to = memory_ + stage * kBytes + which * kStripBytes;
      const unsigned char* piece =
          from.strips + task_.strip_of(tile_, which) * from.strip_bytes + step_ * kStripBytes;
      if (is_whole) {
        barrier.copy(to, piece, kStripBytes, policy_);
      } else {
        copy_chunk(barrier, to, piece);
      }
    }
  }

  // The only one of its piece: to where the first one of two would be.
  __device__ __forceinline__ void copy_chunk(CopyBarrier& barrier,
                                             unsigned char* to,
                                             const unsigned char* piece) {
    barrier.copy(to, piece, kLow / 2, policy_);
    piece += kLow / 2;
    if constexpr (kHigh > 0) barrier.copy(to + kLow, piece, kHigh / 2, policy_);
    piece += kHigh / 2;
    barrier.copy(to + kLow + kHigh, piece, kScales / 2, policy_);
  }

  const StripTask& task_;
  TilePlace place_;
  int lane_;
  uint64_t policy_;
  unsigned char* memory_;  // [stages][kBytes]
  CopyBarrier* barriers_;  // [stages]
  int tile_;               // to be copied next
  int step_;
  int next_ = 0;  // stage to be taken
  uint32_t parity_ = 0;
};

}  // namespace droidspeak::cuda
