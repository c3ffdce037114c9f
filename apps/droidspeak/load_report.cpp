#include "load_report.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "optional_figure.h"
#include "profiler/metrics.h"

namespace droidspeak {

namespace {

constexpr double kShareInTime = 0.95;
constexpr double kShareOfRate = 0.6;  // the rest is the trace's end, when nothing more arrives

Percentiles percentiles_of(const std::vector<double>& values) {
  return {percentile(values, 0.5), percentile(values, 0.95), percentile(values, 0.99)};
}

void add_percentiles(nlohmann::json& out, const std::string& name, const Percentiles& values) {
  out[name + "_p50"] = values.p50;
  out[name + "_p95"] = values.p95;
  out[name + "_p99"] = values.p99;
}

nlohmann::json to_json(const LoadFigures& row) {
  nlohmann::json out{{"arm", row.arm},
                     {"rate", row.rate},
                     {"throughput", row.throughput},
                     {"goodput", row.goodput},
                     {"f1", or_null(row.f1)},
                     {"plans", row.plans},
                     {"answers", row.num_answers},
                     {"in_time", row.num_good},
                     {"failed", row.num_failed},
                     {"ended_early", row.was_ended_early},
                     {"meets_slo", row.meets_slo()}};
  add_percentiles(out, "ttft_ms", row.ttft_ms);
  add_percentiles(out, "tbt_ms", row.tbt_ms);
  add_percentiles(out, "e2e_ms", row.e2e_ms);
  return out;
}

std::vector<std::string> by_frequency(const std::map<std::string, int>& counts) {
  std::vector<std::string> names;
  for (const auto& [name, count] : counts) names.push_back(name);
  std::ranges::stable_sort(names, [&](const std::string& a, const std::string& b) {
    return counts.at(a) > counts.at(b);
  });
  return names;
}

// In order of rate.
std::vector<LoadFigures> rows_of(const LoadReport& report, const std::string& arm) {
  std::vector<LoadFigures> rows;
  std::ranges::copy_if(report.rows, std::back_inserter(rows),
                       [&](const LoadFigures& row) { return row.arm == arm; });
  std::ranges::sort(rows, {}, &LoadFigures::rate);
  return rows;
}

// Maps a value to a pixel.
struct Axis {
  double low_value, high_value;
  double low_pixel, high_pixel;

  double at(double value) const {
    double share = (value - low_value) / std::max(high_value - low_value, 1e-9);
    return low_pixel + share * (high_pixel - low_pixel);
  }
};

std::string svg_text(double x, double y, const std::string& anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     text);
}

std::string svg_axes(const Axis& x, const Axis& y) {
  std::string svg;
  for (int i = 0; i <= 4; ++i) {
    double value_x = x.low_value + (x.high_value - x.low_value) * i / 4;
    double value_y = y.low_value + (y.high_value - y.low_value) * i / 4;
    svg += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", x.low_pixel,
                       y.at(value_y), x.high_pixel);
    svg += svg_text(x.at(value_x), y.low_pixel + 18, "middle", fmt::format("{:.2g}", value_x));
    svg += svg_text(x.low_pixel - 6, y.at(value_y) + 4, "end", fmt::format("{:.0f}", value_y));
  }
  svg += svg_text((x.low_pixel + x.high_pixel) / 2, y.low_pixel + 38, "middle",
                  "answers asked for per second");
  svg += svg_text(x.low_pixel, y.high_pixel - 10, "start", "time to first token, p95 (ms)");
  return svg;
}

std::string svg_line(const std::vector<LoadFigures>& rows,
                     const Axis& x,
                     const Axis& y,
                     const char* colour) {
  std::string path, dots;
  for (const LoadFigures& row : rows) {
    double px = x.at(row.rate);
    double py = y.at(std::min(row.ttft_ms.p95, y.high_value));
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", px, py);
    dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n", px, py,
                        row.meets_slo() ? colour : "#fff\" stroke=\"" + std::string(colour));
  }
  return fmt::format("<path class=\"line\" stroke=\"{}\" d=\"{}\"/>\n{}", colour, path, dots);
}

std::string shown_difference(const LoadFigures& arm, const LoadFigures& off) {
  std::optional<ScoreDifference> difference = compare_scores(arm, off);
  if (!difference) return "";
  return fmt::format(" ({:+.3f} +- {:.3f})", difference->mean, difference->standard_error);
}

void print_summary(const LoadReport& report) {
  fmt::print("\nFull prefill without load takes {:.0f} ms to the first token; target {:.0f} ms.\n",
             report.unloaded_ttft_ms, report.slo_ms);
  fmt::print("Highest throughput with 95 % of the answers within it (answers per second):\n");
  const LoadFigures* off = best_of(report, "off");
  for (const std::string& arm : arms_of(report)) {
    const LoadFigures* best = best_of(report, arm);
    if (best == nullptr) {
      fmt::print("{:>12}  none\n", arm);
      continue;
    }
    std::string ratio =
        off != nullptr ? fmt::format("{:.2f}x of off", best->throughput / off->throughput) : "";
    std::string plan = best->plans.empty() ? "" : best->plans.front();
    fmt::print("{:>12}  {:.3f}  {}  F1 {}{}  {}\n", arm, best->throughput, ratio,
               or_dash(best->f1, 3),
               off != nullptr && best != off ? shown_difference(*best, *off) : "", plan);
  }
}

}  // namespace

bool LoadFigures::meets_slo() const {
  return num_failed == 0 && !was_ended_early && num_answers > 0 &&
         num_good >= kShareInTime * num_answers;
}

bool LoadFigures::keeps_up() const {
  return throughput >= kShareOfRate * rate;
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  double position = share * static_cast<double>(values.size() - 1);
  auto below = static_cast<size_t>(position);
  size_t above = std::min(below + 1, values.size() - 1);
  double part = position - static_cast<double>(below);
  return values[below] * (1 - part) + values[above] * part;
}

LoadFigures summarize(const std::string& arm,
                      double rate,
                      const TraceResult& result,
                      double slo_ms) {
  std::vector<double> ttft, tbt, e2e;
  std::map<std::string, int> plans;
  LoadFigures figures;
  figures.arm = arm;
  figures.rate = rate;
  figures.was_ended_early = result.was_ended_early;
  for (size_t i = 0; i < result.answers.size(); ++i) {
    const LoadResult& answer = result.answers[i];
    if (answer.status != 200 || !answer.is_complete) {
      ++figures.num_failed;
      continue;
    }
    ttft.push_back(answer.ttft_ms);
    e2e.push_back(answer.e2e_ms);
    tbt.insert(tbt.end(), answer.gaps_ms.begin(), answer.gaps_ms.end());
    std::optional<double> f1 = score_answer(Metric::kF1, answer.text, result.references[i]);
    if (f1) figures.scores.push_back(*f1);
    if (!answer.plan.empty()) ++plans[answer.plan];
    if (answer.ttft_ms <= slo_ms) ++figures.num_good;
  }
  figures.num_answers = static_cast<int32_t>(ttft.size());
  figures.ttft_ms = percentiles_of(ttft);
  figures.tbt_ms = percentiles_of(tbt);
  figures.e2e_ms = percentiles_of(e2e);
  figures.throughput = figures.num_answers / std::max(result.seconds, 1e-9);
  figures.goodput = figures.num_good / std::max(result.seconds, 1e-9);
  figures.f1 = mean_if_any(figures.scores);
  figures.plans = by_frequency(plans);
  return figures;
}

std::optional<ScoreDifference> compare_scores(const LoadFigures& arm, const LoadFigures& other) {
  const size_t count = arm.scores.size();
  const bool is_complete = arm.num_failed == 0 && other.num_failed == 0 && !arm.was_ended_early &&
                           !other.was_ended_early && count == other.scores.size();
  if (!is_complete || count < 2) return std::nullopt;
  std::vector<double> differences;
  for (size_t i = 0; i < count; ++i) differences.push_back(arm.scores[i] - other.scores[i]);
  ScoreDifference result{.mean = mean_of(differences)};
  double squares = 0;
  for (double difference : differences)
    squares += (difference - result.mean) * (difference - result.mean);
  const auto n = static_cast<double>(count);
  result.standard_error = std::sqrt(squares / (n - 1) / n);
  return result;
}

std::vector<std::string> arms_of(const LoadReport& report) {
  std::vector<std::string> arms;
  for (const LoadFigures& row : report.rows) {
    if (std::ranges::find(arms, row.arm) == arms.end()) arms.push_back(row.arm);
  }
  return arms;
}

const LoadFigures* best_of(const LoadReport& report, const std::string& arm) {
  const LoadFigures* best = nullptr;
  for (const LoadFigures& row : report.rows) {
    if (row.arm != arm || !row.meets_slo()) continue;
    if (best == nullptr || row.throughput > best->throughput) best = &row;
  }
  return best;
}

nlohmann::json to_json(const LoadReport& report) {
  nlohmann::json rows = nlohmann::json::array();
  for (const LoadFigures& row : report.rows) rows.push_back(to_json(row));
  nlohmann::json best = nlohmann::json::object();
  nlohmann::json differences = nlohmann::json::object();
  const LoadFigures* off = best_of(report, "off");
  for (const std::string& arm : arms_of(report)) {
    const LoadFigures* row = best_of(report, arm);
    best[arm] = row != nullptr ? nlohmann::json(row->throughput) : nlohmann::json();
    if (row == nullptr || off == nullptr || row == off) continue;
    if (std::optional<ScoreDifference> to_off = compare_scores(*row, *off))
      differences[arm] = {{"mean", to_off->mean}, {"standard_error", to_off->standard_error}};
  }
  return {{"slo_ms", report.slo_ms},
          {"unloaded_ttft_ms", report.unloaded_ttft_ms},
          {"best_throughput", best},
          {"f1_to_off", differences},
          {"rows", rows}};
}

void print_table(const LoadReport& report) {
  fmt::print("{:>12} {:>6} {:>9} {:>9} {:>8} {:>8} {:>9} {:>9} {:>10} {:>8} {:>6} {:>9}\n", "arm",
             "rate", "TTFT p50", "p95", "TBT p50", "p95", "E2E p50", "p95", "throughput", "goodput",
             "F1", "in time");
  for (const LoadFigures& row : report.rows) {
    std::string in_time = fmt::format("{}/{}{}", row.num_good, row.num_answers + row.num_failed,
                                      row.was_ended_early ? "+" : "");
    fmt::print(
        "{:>12} {:>6.3f} {:>9.0f} {:>9.0f} {:>8.1f} {:>8.1f} {:>9.0f} {:>9.0f} {:>10.3f} {:>8.3f} "
        "{:>6} {:>9}\n",
        row.arm, row.rate, row.ttft_ms.p50, row.ttft_ms.p95, row.tbt_ms.p50, row.tbt_ms.p95,
        row.e2e_ms.p50, row.e2e_ms.p95, row.throughput, row.goodput, or_dash(row.f1, 3), in_time);
  }
  fmt::print("Times in ms. +: ended early, the target was missed.\n");
  print_summary(report);
}

std::string plot_svg(const LoadReport& report) {
  static constexpr const char* kColours[] = {"#c0392b", "#e67e22", "#2471a3", "#1e8449", "#7d3c98"};
  double max_rate = 0;
  for (const LoadFigures& row : report.rows) max_rate = std::max(max_rate, row.rate);
  Axis x{0, max_rate * 1.05, 70, 620};
  Axis y{0, report.slo_ms * 2, 350, 40};  // what lies far above the target is of no interest
  std::string svg =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 780 400\" "
      "font-family=\"sans-serif\" "
      "font-size=\"12\">\n<style>.grid{stroke:#ddd;fill:none}.line{fill:none;stroke-width:2}</"
      "style>\n"
      "<rect width=\"780\" height=\"400\" fill=\"#fff\"/>\n";
  svg += svg_axes(x, y);
  svg += fmt::format(
      "<path class=\"line\" stroke=\"#888\" stroke-dasharray=\"5 4\" d=\"M{:.1f} "
      "{:.1f}H{:.1f}\"/>\n",
      x.low_pixel, y.at(report.slo_ms), x.high_pixel);
  svg += svg_text(x.high_pixel + 6, y.at(report.slo_ms) + 4, "start", "target");
  size_t index = 0;
  for (const std::string& arm : arms_of(report)) {
    const char* colour = kColours[index % std::size(kColours)];
    svg += svg_line(rows_of(report, arm), x, y, colour);
    double legend_y = 60 + 18 * static_cast<double>(index++);
    svg += fmt::format("<path class=\"line\" stroke=\"{}\" d=\"M640 {:.0f}h20\"/>\n", colour,
                       legend_y);
    svg += svg_text(666, legend_y + 4, "start", arm);
  }
  return svg + "</svg>\n";
}

}  // namespace droidspeak
