// Figures of a load test, and how they are shown.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "load_trace.h"

namespace droidspeak {

struct LoadFigures {
  std::string arm;
  double rate = 0;  // answers asked for per second
  double ttft_ms_p50 = 0;
  double ttft_ms_p95 = 0;
  double tbt_ms_p50 = 0;
  double e2e_ms_p50 = 0;
  double e2e_ms_p95 = 0;
  double throughput = 0;  // answers per second
  double goodput = 0;     // of those with TTFT within the target
  double f1 = 0;
  int32_t num_answers = 0;
  int32_t num_failed = 0;
};

// `share` from 0 to 1.
double percentile(std::vector<double> values, double share);
LoadFigures summarize(const std::string& arm,
                      double rate,
                      const TraceResult& result,
                      double slo_ms);

nlohmann::json to_json(const std::vector<LoadFigures>& rows);
void print_table(const std::vector<LoadFigures>& rows, double slo_ms);
// TTFT (p95) over the rate, a line per arm, the target dashed.
std::string plot_svg(const std::vector<LoadFigures>& rows, double slo_ms);
// The highest goodput among the rates at which an arm's p95 TTFT meets the target; 0: none.
double best_rate_within(const std::vector<LoadFigures>& rows,
                        const std::string& arm,
                        double slo_ms);

}  // namespace droidspeak
