#include "server/prometheus.h"

#include <algorithm>
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
  auto add = [&](std::string_view name, const std::string& text) {
    list += fmt::format("{}{}=\"{}\"", list.empty() ? "" : ",", name, escaped(text));
  };
  for (const auto& [name, text] : common_) {
    auto is_it = [&name = name](const auto& label) { return label.first == name; };
    if (std::ranges::none_of(labels, is_it)) add(name, text);
  }
  for (const auto& [name, text] : labels) add(name, text);
  out_ += fmt::format("{}{}{{{}}} {}\n", name_, suffix, list, number(value));
}

PrometheusText& PrometheusText::sample(double value, const Labels& labels) {
  line("", labels, value);
  return *this;
}

PrometheusText& PrometheusText::histogram(const Histogram& histogram, const Labels& labels) {
  auto bucket = [&](std::string bound, uint64_t below) {
    Labels all = labels;
    all.emplace_back("le", std::move(bound));
    line("_bucket", all, static_cast<double>(below));
  };
  uint64_t below = 0;
  for (size_t i = 0; i < histogram.bounds.size(); ++i) {
    below += histogram.counts[i];
    bucket(number(histogram.bounds[i]), below);
  }
  bucket("+Inf", histogram.count);
  line("_sum", labels, histogram.sum);
  line("_count", labels, static_cast<double>(histogram.count));
  return *this;
}

}  // namespace droidspeak
