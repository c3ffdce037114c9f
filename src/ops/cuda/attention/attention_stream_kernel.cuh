// The kernel behind attention_stream.h. One warp brings K and V of tile after tile to a ring in
// shared memory, as far ahead as it has stages, whatever the others do; four warps take 16 keys
// each of every tile. Whoever has the last split of a slice and head adds its splits up.
#pragma once

#include "ops/cuda/attention/attention_stream_work.cuh"
#include "ops/cuda/device_code/bulk_copy.cuh"
#include "ops/cuda/device_code/cache_hints.cuh"
#include "ops/cuda/device_code/chain.cuh"

namespace droidspeak::cuda {

inline constexpr int kStreamReaders = 4;  // warps
inline constexpr int kStreamThreads = kTileThreads + 32;

// A tile as cache_panels.h describes it.
struct PanelTile {
  static constexpr int kRowBytes = 128;
  static constexpr int kBytes = kTileKeys * kRowBytes;

  unsigned char* first;

  __device__ unsigned char* address(int key, int column) const {
    return first + column / 64 * kBytes + key * kRowBytes + (column % 64 / 8 ^ key % 8) * 16;
  }
};

template <class T, int kHeadDim>
struct StreamMemory {
  static constexpr int kQPitch = kHeadDim + 8;
  static constexpr uint32_t kTileBytes = kHeadDim / 64 * PanelTile::kBytes;
  using Sums = WarpSums<kHeadDim, kStreamReaders>;

  unsigned char* ring;   // [stages][k, v]
  T* q;                  // [rows][kQPitch]
  float* sums;           // as WarpSums
  CopyBarrier* is_full;  // [stages]
  CopyBarrier* is_free;  // [stages]
  int32_t* ends;         // [num_slices]
  int32_t* is_last;

  __device__ StreamMemory(const StreamTask& task, unsigned char* memory) {
    const int rows = rows_of(task);
    ring = memory;
    q = reinterpret_cast<T*>(ring + 2 * task.stages * kTileBytes);
    sums = reinterpret_cast<float*>(q + rows * kQPitch);
    is_full = reinterpret_cast<CopyBarrier*>(sums + rows * Sums::kFloatsOfRow);
    is_free = is_full + task.stages;
    ends = reinterpret_cast<int32_t*>(is_free + task.stages);
    is_last = ends + task.num_slices;
  }

  __host__ __device__ static int rows_of(const StreamTask& task) {
    return task.tiles.largest_rows * task.tiles.group;
  }

  __host__ static size_t bytes(const StreamTask& task) {
    const auto rows = static_cast<size_t>(rows_of(task));
    const auto stages = static_cast<size_t>(task.stages);
    return stages * (2 * kTileBytes + 2 * sizeof(CopyBarrier)) +
           rows * (kQPitch * sizeof(T) + Sums::kFloatsOfRow * sizeof(float)) +
           (static_cast<size_t>(task.num_slices) + 1) * sizeof(int32_t);
  }
};

// Stages in turn; a stage's barriers change parity every time round.
struct StreamTurn {
  int32_t stages;
  int32_t stage = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

// The warp that brings K and V.
template <class T, int kHeadDim>
class StreamBringer {
 public:
  using Memory = StreamMemory<T, kHeadDim>;

  __device__ StreamBringer(const StreamTask& task, const Memory& memory)
      : task_(task),
        memory_(memory),
        run_(task, memory.ends, static_cast<int32_t>(blockIdx.x), static_cast<int32_t>(gridDim.x)),
        turn_{task.stages} {
    lane_ = static_cast<int>(threadIdx.x) % 32;
  }

  // Brings the first tiles as far as the cache that all multiprocessors share, while the kernel
  // before may still write the newest rows of them.
  __device__ void prefetch() {
    StreamRun run = run_;
    int32_t left = task_.stages;
    while (left > 0 && run.advance()) {
      for (int32_t tile = run.begin(); tile < run.end() && left > 0; ++tile, --left) {
        const int64_t first = row_of(run, tile) * kHeadDim;
        if (lane_ == 0)
          prefetch_bulk(static_cast<const T*>(task_.tiles.k) + first, Memory::kTileBytes);
        if (lane_ == 1)
          prefetch_bulk(static_cast<const T*>(task_.tiles.v) + first, Memory::kTileBytes);
      }
    }
  }

  __device__ void run() {
    while (run_.advance()) {
      for (int32_t tile = run_.begin(); tile < run_.end(); ++tile) {
        const int64_t row = row_of(run_, tile);
        memory_.is_free[turn_.stage].wait(turn_.parity ^ 1);
        bring(row);
        turn_.advance();
      }
    }
  }

 private:
  // Of a tile in the cache. Lanes have the numbers of 32 blocks side by side.
  __device__ int64_t row_of(const StreamRun& run, int32_t tile) {
    const TileArguments& a = task_.tiles;
    if (run.slice() != slice_ || tile < first_ || tile >= first_ + 32) {
      slice_ = run.slice();
      first_ = tile;
      const int32_t wanted = min(tile + lane_, run.tiles().end - 1);
      block_ = a.blocks[static_cast<int64_t>(slice_) * a.max_blocks + wanted];
    }
    const int64_t block = __shfl_sync(~0u, block_, tile - first_);
    return (block * a.num_kv_heads + run.kv_head()) * kTileKeys;
  }

  __device__ void bring(int64_t row) {
    unsigned char* k = memory_.ring + 2 * turn_.stage * Memory::kTileBytes;
    unsigned char* v = k + Memory::kTileBytes;
    CopyBarrier& is_full = memory_.is_full[turn_.stage];
    if (lane_ != 0) return;
    is_full.expect(2 * Memory::kTileBytes);
#pragma unroll
    for (int column = 0; column < kHeadDim; column += 64) {
      const int at = column / 64 * PanelTile::kBytes;
      is_full.copy_panel(task_.k, k + at, column, static_cast<int32_t>(row));
      is_full.copy_panel(task_.v, v + at, column, static_cast<int32_t>(row));
    }
  }

  const StreamTask& task_;
  const Memory& memory_;
  StreamRun run_;
  StreamTurn turn_;
  int lane_;
  int32_t slice_ = -1;  // whose blocks the lanes have
  int32_t first_ = 0;
  int32_t block_ = 0;
};

__device__ inline void sync_readers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kTileThreads) : "memory");
}

// One of the warps that attend.
template <class T, int kHeadDim>
class StreamReader {
 public:
  using Memory = StreamMemory<T, kHeadDim>;
  static constexpr int kWarpKeys = kTileKeys / kStreamReaders;
  using Rows = WarpRows<T, kHeadDim, kWarpKeys>;
  using Sums = typename Memory::Sums;

  __device__ StreamReader(const StreamTask& task, const Memory& memory)
      : task_(task),
        a_(task.tiles),
        memory_(memory),
        run_(task, memory.ends, static_cast<int32_t>(blockIdx.x), static_cast<int32_t>(gridDim.x)),
        turn_{task.stages},
        sums_(memory.sums, Memory::rows_of(task)) {
    warp_ = static_cast<int>(threadIdx.x) / 32;
    lane_ = static_cast<int>(threadIdx.x) % 32;
  }

  __device__ void run() {
    while (run_.advance()) {
      if (run_.is_new_item()) begin_item();
      for (int32_t tile = run_.begin(); tile < run_.end(); ++tile) attend(tile);
      finish_split();
      if (run_.ends_item()) finish_item();
    }
  }

 private:
  __device__ void begin_item() {
    work_.slice = run_.slice();
    work_.kv_head = run_.kv_head();
    work_.first = 0;
    work_.num_packed = a_.slice_rows[work_.slice] * a_.group;
    work_.length = run_.tiles().length;
    num_finished_ = 0;
    constexpr int kChunks = kHeadDim / 8;
    for (int i = static_cast<int>(threadIdx.x); i < work_.num_packed * kChunks; i += kTileThreads) {
      const int row = i / kChunks;
      const int column = i % kChunks * 8;
      *reinterpret_cast<uint4*>(memory_.q + row * Memory::kQPitch + column) =
          read_q<T, kHeadDim>(a_, work_, row, column);
    }
    rows_.set_positions([&](int row) { return position_of(a_, work_, row); });
    sync_readers();
    // Rows that are not there are the last one again; nothing of them is stored.
    rows_.load_q(memory_.q + min(lane_ % 16, work_.num_packed - 1) * Memory::kQPitch);
  }

  __device__ void attend(int32_t tile) {
    memory_.is_full[turn_.stage].wait(turn_.parity);
    unsigned char* k = memory_.ring + 2 * turn_.stage * Memory::kTileBytes;
    unsigned char* v = k + Memory::kTileBytes;
    const int first = warp_ * kWarpKeys;
    typename Rows::Scores scores = {};
    rows_.score(PanelTile{k}, first, scores);
    rows_.soften(a_.rules(), tile * kTileKeys + first, scores);
    const int32_t there = work_.length - tile * kTileKeys;
    if (there < first + kWarpKeys) clear_behind(there, v);
    rows_.add_values(PanelTile{v}, first, scores);
    __syncwarp();
    if (lane_ == 0) memory_.is_free[turn_.stage].arrive();
    turn_.advance();
  }

  // What lies behind the last key may be anything, and is still multiplied, by 0.
  __device__ void clear_behind(int32_t there, unsigned char* v) const {
    const int first = warp_ * kWarpKeys;
    constexpr int kChunks = kHeadDim / 8;
    for (int i = max(there - first, 0) * kChunks + lane_; i < kWarpKeys * kChunks; i += 32) {
      unsigned char* to = PanelTile{v}.address(first + i / kChunks, i % kChunks * 8);
      *reinterpret_cast<uint4*>(to) = uint4{0, 0, 0, 0};
    }
    fence_before_copies();
    __syncwarp();
  }

  __device__ void finish_split() {
    rows_.add_totals();
    sync_readers();  // those of the split before were read
    sums_.put(rows_, warp_, work_.num_packed);
    sync_readers();
    sums_.merge(a_.scale, work_.num_packed, run_.split(), TileOutput<kHeadDim>{a_, work_});
    rows_.forget();
    ++num_finished_;
  }

  // Where other blocks have splits of the slice and head, the one that is done last adds them up.
  __device__ void finish_item() {
    if (work_.length <= a_.split_step) return;
    const int32_t all = run_.tiles().num_splits();
    if (num_finished_ < all) {
      __threadfence();
      sync_readers();
      if (threadIdx.x == 0) {
        int32_t* finished = task_.finished + work_.slice * a_.num_kv_heads + work_.kv_head;
        const bool is_last = atomicAdd(finished, num_finished_) + num_finished_ == all;
        if (is_last) *finished = 0;
        __threadfence();
        *memory_.is_last = is_last ? 1 : 0;
      }
      sync_readers();
      if (*memory_.is_last == 0) return;
    } else {
      sync_readers();
    }
    for (int32_t packed = warp_; packed < work_.num_packed; packed += kStreamReaders)
      combine_row<kHeadDim>(a_, work_.slice, packed / a_.group,
                            work_.kv_head * a_.group + packed % a_.group, work_.length);
  }

  const StreamTask& task_;
  const TileArguments& a_;
  const Memory& memory_;
  StreamRun run_;
  StreamTurn turn_;
  Sums sums_;
  int warp_;
  int lane_;
  TileWork work_;
  int32_t num_finished_ = 0;  // splits of the slice and head
  Rows rows_;
};

template <class T, int kHeadDim>
__global__ void __launch_bounds__(kStreamThreads, 2)
    attend_stream(const __grid_constant__ StreamTask task) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned char bytes[];
  const StreamMemory<T, kHeadDim> memory(task, bytes);
  const auto warp = static_cast<int>(threadIdx.x) / 32;
  let_next_start();
  if (warp == kStreamReaders) count_tiles(task, memory.ends);
  if (threadIdx.x == 0) {
    for (int i = 0; i < task.stages; ++i) {
      memory.is_full[i].init();
      memory.is_free[i].init(kStreamReaders);
    }
    fence_before_copies();
  }
  // No kernel of a chain writes the layout.
  __syncthreads();
  if (warp == kStreamReaders) {
    StreamBringer<T, kHeadDim> bringer(task, memory);
    bringer.prefetch();
    wait_for_previous();
    bringer.run();
  } else {
    StreamReader<T, kHeadDim> reader(task, memory);
    wait_for_previous();
    reader.run();
  }
#endif
}

}  // namespace droidspeak::cuda
