// Counters and histograms of the engine, as a snapshot. Names for the outside are the server's
// matter.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "store/cache_store.h"

namespace droidspeak {

struct Histogram {
  std::vector<double> bounds;    // upper bounds, ascending; one more bucket beyond the last
  std::vector<uint64_t> counts;  // bounds.size() + 1
  double sum = 0;
  uint64_t count = 0;

  explicit Histogram(std::vector<double> upper_bounds = {});
  void add(double value);
};

// Bucket bounds in seconds, the ones vLLM uses.
std::vector<double> first_token_bounds();
std::vector<double> output_token_bounds();
std::vector<double> request_bounds();

struct PairCounters {
  uint64_t hits = 0;
  uint64_t tokens_reused = 0;
};

// What is counted of all requests, and of each variant's.
struct RequestCounters {
  uint64_t requests_finished_stop = 0;
  uint64_t requests_finished_length = 0;
  uint64_t requests_cancelled = 0;  // by the reader, or past their deadline
  uint64_t requests_failed = 0;
  uint64_t prompt_tokens = 0;
  uint64_t generation_tokens = 0;
  uint64_t prefix_cache_queries = 0;  // tokens
  uint64_t prefix_cache_hits = 0;     // tokens
  Histogram ttft_seconds{first_token_bounds()};
};

struct EngineMetrics : RequestCounters {
  // Of the variants that are loaded, by name; an adapter's go when it is unloaded.
  std::map<std::string, RequestCounters> variants;
  uint64_t preemptions = 0;
  int32_t running = 0;
  int32_t waiting = 0;
  double kv_usage = 0;  // 0..1
  Histogram time_per_output_token_seconds{output_token_bounds()};
  Histogram e2e_seconds{request_bounds()};
  Histogram queue_seconds{request_bounds()};
  // Sharing
  std::map<std::pair<std::string, std::string>, PairCounters> pairs;  // (sender, receiver)
  std::map<std::string, uint64_t> hits_by_tier;                       // by name; "device", too
  std::map<std::string, uint64_t> fallbacks;                          // by reason
  uint64_t layers_recomputed = 0;
  uint64_t looked_at_tokens = 0;
  uint64_t drafted_tokens = 0;   // ahead of decoding
  uint64_t accepted_tokens = 0;  // of those
  uint64_t bytes_loaded = 0;
  double load_seconds = 0;
  double compute_seconds = 0;
  double predicted_ttft_seconds = 0;  // sums over requests with a prediction
  double measured_ttft_seconds = 0;
  uint64_t predictions = 0;
  StoreCounters store;

  // change(RequestCounters&) of all requests, and of the variant's unless it is gone.
  template <class Change>
  void count(const std::string& variant, Change&& change) {
    change(static_cast<RequestCounters&>(*this));
    if (auto found = variants.find(variant); found != variants.end()) change(found->second);
  }

  // These are loaded now: others, and what they shared, are forgotten.
  void keep_variants(const std::set<std::string>& names);
};

}  // namespace droidspeak
