// The work of agents as a trace: one variant reads a context, others answer questions on it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "load_client.h"
#include "text/tokenizer.h"

namespace droidspeak {

struct LoadAnswer {
  LoadRequest request;
  std::vector<std::string> references;
};

// Begins at a time of its own; the answers are asked for when the reading is done.
struct Workflow {
  double arrival_s = 0;
  LoadRequest reading;
  std::vector<LoadAnswer> answers;
};

struct TraceOptions {
  std::filesystem::path data;
  std::string sender;
  std::vector<std::string> receivers;
  int32_t num_workflows = 20;
  int32_t answers_per_context = 4;
  int32_t min_context_tokens = 1000;
  int32_t max_context_tokens = 6000;
  int32_t max_tokens = 16;
  uint64_t seed = 1;
};

// Contexts are documents of the data's rows put together up to lengths drawn evenly from the range;
// questions are those of the rows. Throws Failure when the data does not suffice.
std::vector<Workflow> make_trace(const Tokenizer& tokenizer, const TraceOptions& options);

// Poisson arrivals at `workflows_per_second`, the same for the same seed.
void set_arrivals(std::vector<Workflow>& trace, double workflows_per_second, uint64_t seed);

struct TraceResult {
  std::vector<LoadResult> answers;
  std::vector<std::vector<std::string>> references;  // of each answer
  double seconds = 0;
};

// Plays the trace against a server and waits for all answers.
TraceResult play_trace(const std::string& url,
                       const std::vector<Workflow>& trace,
                       const std::string& cache_salt);

}  // namespace droidspeak
