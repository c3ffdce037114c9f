#include <algorithm>
#include <cstdlib>

#include "ops/cuda/attention/attention_stream.h"
#include "ops/cuda/attention/attention_stream_kernel.cuh"
#include "ops/cuda/attention/cache_panels.h"
#include "ops/cuda/device_code/runs_here.h"

namespace droidspeak::cuda {
namespace {

int number_of(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

constexpr int kLeastStages = 2;
constexpr int kReservedBytes = 1024;  // of every block

template <class T, int kHeadDim>
void launch_kernel(const StreamLaunch& launch, StreamTask task) {
  using Memory = StreamMemory<T, kHeadDim>;
  auto* kernel = attend_stream<T, kHeadDim>;
  static const int room = attribute_of_device(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  static const int all = attribute_of_device(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  static const int multiprocessors = attribute_of_device(cudaDevAttrMultiProcessorCount);
  static const cudaError_t is_allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, room);
  check_cuda(is_allowed, "shared memory of attention");
  static const cudaError_t is_preferred = cudaFuncSetAttribute(
      kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  check_cuda(is_preferred, "shared memory of attention");
  auto has_room = [&](int blocks) {
    const auto bytes = static_cast<int>(Memory::bytes(task));
    return bytes <= room && blocks * (bytes + kReservedBytes) <= all;
  };
  int blocks = number_of("DS_STREAM_BLOCKS", 2) + 1;    // of a multiprocessor
  const int stages = number_of("DS_STREAM_STAGES", 6);  // of all of them
  do {
    task.stages = stages / --blocks;
    while (task.stages > kLeastStages && !has_room(blocks)) --task.stages;
  } while (blocks > 1 && !has_room(blocks));
  check(has_room(blocks), "attention has room for two stages");
  launch_chained(kernel,
                 {.grid = dim3(static_cast<unsigned>(blocks * multiprocessors)),
                  .block = dim3(kStreamThreads),
                  .shared_bytes = Memory::bytes(task),
                  .stream = launch.stream,
                  .rows = launch.num_rows},
                 task);
}

template <class T>
void launch_element(const StreamLaunch& launch, const StreamTask& task) {
  if (launch.kv.head_dim == 64) return launch_kernel<T, 64>(launch, task);
  launch_kernel<T, 128>(launch, task);
}

}  // namespace

bool stream_supports(const TileArguments& tiles, const KvLayerView& kv, int32_t num_slices) {
  constexpr size_t kLeastRoom = size_t{160} << 10;
  static const bool has_kernel =
      has_panels() && runs_here(attend_stream<__nv_bfloat16, 128>, kLeastRoom);
  return has_kernel && (kv.dtype == DType::kBF16 || kv.dtype == DType::kF16) &&
         (kv.head_dim == 64 || kv.head_dim == 128) && tiles.largest_rows * tiles.group <= 16 &&
         !tiles.only_gathered && int64_t{num_slices} * kv.num_kv_heads <= kMostStreamItems;
}

void attend_as_stream(const StreamLaunch& launch) {
  const KvLayerView& kv = launch.kv;
  const StreamTask task{.k = panels_of(kv.k, kv.dtype, kv.head_dim),
                        .v = panels_of(kv.v, kv.dtype, kv.head_dim),
                        .tiles = launch.tiles,
                        .num_slices = launch.num_slices,
                        .stages = 0,
                        .finished = launch.counters};
  if (kv.dtype == DType::kF16) return launch_element<__half>(launch, task);
  launch_element<__nv_bfloat16>(launch, task);
}

}  // namespace droidspeak::cuda
