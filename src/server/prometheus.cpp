#include "server/prometheus.h"

#include <cmath>

#include <fmt/format.h>

#include "base/check.h"

namespace droidspeak {

namespace {

const char* type_name(PrometheusText::Kind kind) {
  switch (kind) {
    case PrometheusText::Kind::kCounter:
      return "counter";
    case PrometheusText::Kind::kGauge:
      return "gauge";
    case PrometheusText::Kind::kHistogram:
      return "histogram";
  }
  panic("unknown metric kind");
}

std::string escaped(std::string_view value) {
  std::string text;
  for (char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    if (c == '\n') {
      text += "\\n";
    } else {
      text += c;
    }
  }
  return text;
}

std::string number(double value) {
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return std::isnan(value) ? "NaN" : fmt::format("{}", value);
}

}  // namespace

PrometheusText& PrometheusText::metric(std::string_view name, Kind kind, std::string_view help) {
  name_ = name;
  out_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type_name(kind));
  return *this;
}

void PrometheusText::line(std::string_view suffix, const Labels& labels, double value) {
  std::string list;
  for (const Labels* group : {&std::as_const(common_), &labels}) {
    for (const auto& [name, text] : *group) {
      list += fmt::format("{}{}=\"{}\"", list.empty() ? "" : ",", name, escaped(text));
    }
  }
  out_ += fmt::format("{}{}{{{}}} {}\n", name_, suffix, list, number(value));
}

PrometheusText& PrometheusText::sample(double value, const Labels& labels) {
  line("", labels, value);
  return *this;
}

PrometheusText& PrometheusText::histogram(const Histogram& histogram) {
  uint64_t below = 0;
  for (size_t i = 0; i < histogram.bounds.size(); ++i) {
    below += histogram.counts[i];
    line("_bucket", {{"le", number(histogram.bounds[i])}}, static_cast<double>(below));
  }
  line("_bucket", {{"le", "+Inf"}}, static_cast<double>(histogram.count));
  line("_sum", {}, histogram.sum);
  line("_count", {}, static_cast<double>(histogram.count));
  return *this;
}

}  // namespace droidspeak
