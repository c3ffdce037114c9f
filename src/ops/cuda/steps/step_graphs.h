// CUDA graphs of decode steps. The first time a trace is seen its operations are queued one by one,
// which also chooses algorithms and makes room; the second time they are recorded; from then on one
// launch runs them. Positions, blocks and corrections lie in device memory that is written before.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ops/cuda/steps/layout_cache.h"
#include "ops/cuda/steps/op_trace.h"

namespace droidspeak::cuda {

// Rows that a decode step is padded to, so that few graphs serve all batches.
int64_t rows_of_step(int64_t rows);

class StepGraphs {
 public:
  explicit StepGraphs(CudaDevice& device) : device_(device) {}

  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // What operations read where it is written before every run.
  struct Inputs {
    const BatchLayout& layout;
    const DeviceLoraTable& corrections;
  };

  // Queues the operations on a stream.
  using Queue = std::function<void(cudaStream_t stream, const Inputs& inputs)>;
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
    explicit Entry(CudaDevice& device) : layout(device), corrections(device) {}

    Inputs inputs() const { return {layout.layout(), corrections}; }

    State state = State::kEmpty;
    OpTrace trace;
    DeviceLayout layout;
    DeviceLoraTable corrections;
    cudaGraphExec_t graph = nullptr;
    Marker end;  // of its last run
    uint64_t last_use = 0;
  };

  // Entries keep their layout's memory when their place is taken.
  static constexpr size_t kMaxEntries = 64;

  Entry& find(const OpTrace& trace);
  void forget(Entry& entry);
  void record(Entry& entry, const Queue& queue);

  CudaDevice& device_;
  Stream recording_;  // not the compute stream: other threads use that one
  std::vector<std::unique_ptr<Entry>> entries_;
  uint64_t num_runs_ = 0;
};

}  // namespace droidspeak::cuda
