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

// Begins at a time of its own with the reading; the answers are asked for one after another.
struct Workflow {
  double arrival_s = 0;
  LoadRequest reading;
  std::vector<LoadAnswer> answers;
};

struct TraceOptions {
  std::filesystem::path data;
  std::string sender;
  std::vector<std::string> receivers;
  int32_t num_workflows = 8;
  int32_t answers_per_context = 0;  // 0: one of each receiver
  int32_t min_context_tokens = 1000;
  int32_t max_context_tokens = 6000;
  int32_t max_tokens = 16;
  uint64_t seed = 1;
};

// Contexts are documents of the data's rows put together up to lengths from the range, short ones
// more often (even in the logarithm); questions are those of the rows. Throws Failure when the data
// does not suffice.
std::vector<Workflow> make_trace(const Tokenizer& tokenizer, const TraceOptions& options);

// Poisson arrivals, the same for the same seed; their mean rate is exactly `workflows_per_second`.
void set_arrivals(std::vector<Workflow>& trace, double workflows_per_second, uint64_t seed);

// Gives all requests one `cache_salt`, so that they find nothing of what others have left in a
// store that outlives them.
void set_salt(std::vector<Workflow>& trace, const std::string& salt);

struct TraceResult {
  std::vector<LoadResult> answers;
  std::vector<std::vector<std::string>> references;  // of each answer
  double seconds = 0;
  bool was_ended_early = false;
};

// When to stop a replay before its end: nothing new begins once so many answers came too late.
struct ReplayLimit {
  double slo_ms = 0;  // 0: none
  int32_t max_late = 0;
};

// Plays the trace against a server and waits for all answers.
TraceResult play_trace(const LoadTarget& target,
                       const std::vector<Workflow>& trace,
                       const ReplayLimit& limit = {});

}  // namespace droidspeak
