#include "load_report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "profiler/metrics.h"

namespace droidspeak {

namespace {

std::vector<std::string> arms_of(const std::vector<LoadFigures>& rows) {
  std::vector<std::string> arms;
  for (const LoadFigures& row : rows) {
    if (std::ranges::find(arms, row.arm) == arms.end()) arms.push_back(row.arm);
  }
  return arms;
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

}  // namespace

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
  std::vector<double> ttft, tbt, e2e, scores;
  int32_t num_good = 0;
  LoadFigures figures;
  figures.arm = arm;
  figures.rate = rate;
  for (size_t i = 0; i < result.answers.size(); ++i) {
    const LoadResult& answer = result.answers[i];
    if (answer.status != 200 || !answer.is_complete) {
      ++figures.num_failed;
      continue;
    }
    ttft.push_back(answer.ttft_ms);
    e2e.push_back(answer.e2e_ms);
    if (answer.tbt_ms > 0) tbt.push_back(answer.tbt_ms);
    scores.push_back(score_answer(Metric::kF1, answer.text, result.references[i]));
    if (answer.ttft_ms <= slo_ms) ++num_good;
  }
  figures.num_answers = static_cast<int32_t>(ttft.size());
  figures.ttft_ms_p50 = percentile(ttft, 0.5);
  figures.ttft_ms_p95 = percentile(ttft, 0.95);
  figures.tbt_ms_p50 = percentile(tbt, 0.5);
  figures.e2e_ms_p50 = percentile(e2e, 0.5);
  figures.e2e_ms_p95 = percentile(e2e, 0.95);
  figures.throughput = figures.num_answers / std::max(result.seconds, 1e-9);
  figures.goodput = num_good / std::max(result.seconds, 1e-9);
  figures.f1 = mean_of(scores);
  return figures;
}

nlohmann::json to_json(const std::vector<LoadFigures>& rows) {
  nlohmann::json list = nlohmann::json::array();
  for (const LoadFigures& row : rows) {
    list.push_back({{"arm", row.arm},
                    {"rate", row.rate},
                    {"ttft_ms_p50", row.ttft_ms_p50},
                    {"ttft_ms_p95", row.ttft_ms_p95},
                    {"tbt_ms_p50", row.tbt_ms_p50},
                    {"e2e_ms_p50", row.e2e_ms_p50},
                    {"e2e_ms_p95", row.e2e_ms_p95},
                    {"throughput", row.throughput},
                    {"goodput", row.goodput},
                    {"f1", row.f1},
                    {"answers", row.num_answers},
                    {"failed", row.num_failed}});
  }
  return list;
}

void print_table(const std::vector<LoadFigures>& rows, double slo_ms) {
  fmt::print("{:>12} {:>7} {:>10} {:>10} {:>9} {:>10} {:>11} {:>9} {:>6} {:>7}\n", "arm", "rate",
             "TTFT p50", "TTFT p95", "TBT p50", "E2E p50", "throughput", "goodput", "F1", "failed");
  for (const LoadFigures& row : rows) {
    fmt::print(
        "{:>12} {:>7.3g} {:>10.1f} {:>10.1f} {:>9.1f} {:>10.1f} {:>11.2f} {:>9.2f} {:>6.3f} "
        "{:>7}\n",
        row.arm, row.rate, row.ttft_ms_p50, row.ttft_ms_p95, row.tbt_ms_p50, row.e2e_ms_p50,
        row.throughput, row.goodput, row.f1, row.num_failed);
  }
  fmt::print("\nTTFT target {:.0f} ms; highest goodput with p95 within it:", slo_ms);
  std::vector<std::string> arms = arms_of(rows);
  for (const std::string& arm : arms)
    fmt::print(" {} {:.2f}/s", arm, best_rate_within(rows, arm, slo_ms));
  fmt::print("\n");
}

double best_rate_within(const std::vector<LoadFigures>& rows,
                        const std::string& arm,
                        double slo_ms) {
  double best = 0;
  for (const LoadFigures& row : rows) {
    if (row.arm == arm && row.ttft_ms_p95 <= slo_ms && row.num_failed == 0)
      best = std::max(best, row.goodput);
  }
  return best;
}

std::string plot_svg(const std::vector<LoadFigures>& rows, double slo_ms) {
  static constexpr const char* kColours[] = {"#c0392b", "#e67e22", "#2471a3", "#1e8449", "#7d3c98"};
  double max_rate = 0;
  for (const LoadFigures& row : rows) max_rate = std::max(max_rate, row.rate);
  Axis x{0, max_rate * 1.05, 70, 620};
  Axis y{0, slo_ms * 3, 350, 40};  // what lies far above the target is of no interest
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
      x.low_pixel, y.at(slo_ms), x.high_pixel);
  svg += svg_text(x.high_pixel + 6, y.at(slo_ms) + 4, "start", "target");
  size_t index = 0;
  for (const std::string& arm : arms_of(rows)) {
    const char* colour = kColours[index % std::size(kColours)];
    std::string path, dots;
    for (const LoadFigures& row : rows) {
      if (row.arm != arm) continue;
      double px = x.at(row.rate);
      double py = y.at(std::min(row.ttft_ms_p95, y.high_value));
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", px, py);
      dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n", px, py,
                          colour);
    }
    svg += fmt::format("<path class=\"line\" stroke=\"{}\" d=\"{}\"/>\n{}", colour, path, dots);
    double legend_y = 60 + 18 * static_cast<double>(index++);
    svg += fmt::format("<path class=\"line\" stroke=\"{}\" d=\"M640 {:.0f}h20\"/>\n", colour,
                       legend_y);
    svg += svg_text(666, legend_y + 4, "start", arm);
  }
  return svg + "</svg>\n";
}

}  // namespace droidspeak
