// Writes Prometheus' text format.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/metrics.h"

namespace droidspeak {

class PrometheusText {
 public:
  using Labels = std::vector<std::pair<std::string_view, std::string>>;

  // Labels that every sample carries, unless it brings one of that name itself.
  explicit PrometheusText(Labels common) : common_(std::move(common)) {}

  enum class Kind { kCounter, kGauge, kHistogram };
  // Begins a metric; its samples follow. Counter names end in _total.
  PrometheusText& metric(std::string_view name, Kind kind, std::string_view help);
  PrometheusText& sample(double value, const Labels& labels = {});
  PrometheusText& histogram(const Histogram& histogram, const Labels& labels = {});

  std::string take() && { return std::move(out_); }

 private:
  void line(std::string_view suffix, const Labels& labels, double value);

  Labels common_;
  std::string name_;
  std::string out_;
};

}  // namespace droidspeak
