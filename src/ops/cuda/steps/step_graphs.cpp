#include "ops/cuda/steps/step_graphs.h"

#include <algorithm>

#include "base/error.h"

namespace droidspeak::cuda {

// A step reads its weights whatever it has of rows; up to 4 rows have kernels of their own.
int64_t rows_of_step(int64_t rows) {
  auto up_to = [&](int64_t step) { return (rows + step - 1) / step * step; };
  if (rows <= 2) return rows;
  if (rows <= 16) return up_to(4);
  if (rows <= 64) return up_to(8);
  return rows <= 128 ? up_to(16) : up_to(32);
}

StepGraphs::~StepGraphs() {
  for (const auto& entry : entries_) {
    if (entry->graph != nullptr) cudaGraphExecDestroy(entry->graph);
  }
}

size_t StepGraphs::num_recorded() const {
  return static_cast<size_t>(std::ranges::count_if(
      entries_, [](const auto& entry) { return entry->state == State::kRecorded; }));
}

void StepGraphs::run(const OpTrace& trace, const Queue& queue) {
  Entry& entry = find(trace);
  entry.last_use = ++num_runs_;
  if (!trace.slices().empty()) entry.layout.assign(trace.slices(), trace.room());
  if (trace.corrections().num_operations() > 0) entry.corrections.assign(trace.corrections());
  if (entry.state == State::kSeen) record(entry, queue);
  if (entry.state == State::kRecorded) {
    check_cuda(cudaGraphLaunch(entry.graph, device_.stream()), "run a recorded step");
    return entry.end.record(device_.stream());
  }
  queue(device_.stream(), entry.inputs());
  if (entry.state == State::kEmpty) entry.state = State::kSeen;
}

// The entry of this trace, in the place of the one that was not used for longest if it is new.
StepGraphs::Entry& StepGraphs::find(const OpTrace& trace) {
  auto found =
      std::ranges::find_if(entries_, [&](const auto& entry) { return entry->trace == trace; });
  if (found != entries_.end()) return **found;
  if (entries_.size() < kMaxEntries) {
    found = entries_.insert(entries_.end(), std::make_unique<Entry>(device_));
  } else {
    found =
        std::ranges::min_element(entries_, {}, [](const auto& entry) { return entry->last_use; });
    forget(**found);
  }
  (*found)->trace = trace;
  return **found;
}

void StepGraphs::forget(Entry& entry) {
  entry.state = State::kEmpty;
  if (entry.graph == nullptr) return;
  entry.end.wait();
  cudaGraphExecDestroy(entry.graph);
  entry.graph = nullptr;
}

void StepGraphs::record(Entry& entry, const Queue& queue) {
  entry.state = State::kRefused;
  check_cuda(cudaStreamBeginCapture(recording_.get(), cudaStreamCaptureModeThreadLocal),
             "begin to record a step");
  bool is_complete = true;
  try {
    queue(recording_.get(), entry.inputs());
  } catch (const Failure&) {  // a call that is not allowed here; it is made later, outside
    is_complete = false;
  }
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(recording_.get(), &graph);
  if (ended == cudaSuccess && is_complete &&
      cudaGraphInstantiate(&entry.graph, graph, 0) == cudaSuccess) {
    entry.state = State::kRecorded;
  } else {
    cudaGetLastError();  // forgotten: the step runs without a graph
    entry.graph = nullptr;
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
}

}  // namespace droidspeak::cuda
