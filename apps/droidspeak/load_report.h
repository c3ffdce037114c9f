// Figures of a load test, and how they are shown.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "load_trace.h"

namespace droidspeak {

struct Percentiles {
  double p50 = 0;
  double p95 = 0;
  double p99 = 0;
};

struct LoadFigures {
  std::string arm;
  double rate = 0;  // answers asked for per second
  Percentiles ttft_ms;
  Percentiles tbt_ms;  // between tokens
  Percentiles e2e_ms;
  double throughput = 0;           // answers per second
  double goodput = 0;              // of those with TTFT within the target
  std::optional<double> f1;        // nothing without known answers
  std::vector<double> scores;      // F1 of every answer that came, in the trace's order
  std::vector<std::string> plans;  // what the server did, most frequent first
  int32_t num_answers = 0;
  int32_t num_good = 0;
  int32_t num_failed = 0;
  bool was_ended_early = false;

  // 95 of 100 answers came within the target, and all came.
  bool meets_slo() const;
  // A short trace meets a target at any rate; this tells that no queue was building up.
  bool keeps_up() const;
};

// `share` from 0 to 1.
double percentile(std::vector<double> values, double share);
LoadFigures summarize(const std::string& arm,
                      double rate,
                      const TraceResult& result,
                      double slo_ms);

struct LoadReport {
  std::vector<LoadFigures> rows;  // in the order of measuring
  double slo_ms = 0;
  double unloaded_ttft_ms = 0;  // of full prefill, median
};

// How much better an arm's answers are than those of another one to the same questions.
struct ScoreDifference {
  double mean = 0;
  double standard_error = 0;
};

// Null when one has not answered everything.
std::optional<ScoreDifference> compare_scores(const LoadFigures& arm, const LoadFigures& other);

// The row with the highest throughput at which the arm met the target; null: none.
const LoadFigures* best_of(const LoadReport& report, const std::string& arm);
std::vector<std::string> arms_of(const LoadReport& report);

nlohmann::json to_json(const LoadReport& report);
void print_table(const LoadReport& report);
// TTFT (p95) over the rate, a line per arm, the target dashed.
std::string plot_svg(const LoadReport& report);

}  // namespace droidspeak
