// CUDA graphs of decode steps. The first time a trace is seen its operations are queued one by one,
// which also chooses algorithms and makes room; the second time they are recorded; from then on one
// launch runs them. Positions and blocks lie in a layout in device memory that is written before.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ops/cuda/steps/layout_cache.h"
#include "ops/cuda/steps/op_trace.h"

namespace droidspeak::cuda {

class StepGraphs {
 public:
  explicit StepGraphs(CudaDevice& device) : device_(device) {}

  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // Queues the operations on a stream. Positions and blocks are read from the layout.
  using Queue = std::function<void(cudaStream_t stream, const BatchLayout& layout)>;
  // `trace` is what `queue` would queue. Throws what `queue` throws outside of a recording.
  void run(const OpTrace& trace, const Queue& queue);

  size_t num_recorded() const;

 private:
  enum class State {
    kEmpty,
    kSeen,      // once, queued one by one
    kRecorded,  // `graph` runs it
    kRefused,   // has something that cannot be recorded
  };

  struct Entry {
    explicit Entry(CudaDevice& device) : layout(device) {}

    State state = State::kEmpty;
    OpTrace trace;
    DeviceLayout layout;
    cudaGraphExec_t graph = nullptr;
    uint64_t last_use = 0;
  };

  // Entries keep their layout's memory when their place is taken.
  static constexpr size_t kMaxEntries = 32;

  Entry& find(const OpTrace& trace);
  void forget(Entry& entry);
  void record(Entry& entry, const Queue& queue);

  CudaDevice& device_;
  Stream recording_;  // not the compute stream: other threads use that one
  std::vector<std::unique_ptr<Entry>> entries_;
  uint64_t num_runs_ = 0;
};

}  // namespace droidspeak::cuda
