#include "profiler/plots.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "base/file.h"
#include "profiler/svg.h"

namespace droidspeak {
namespace {

constexpr double kLeft = 62;
constexpr double kTop = 56;
constexpr double kSmallestKl = 1e-4;

std::string short_number(double value) {
  if (value >= 0.0995) return fmt::format("{:.2f}", value).substr(value < 1 ? 1 : 0);
  if (value >= 0.00095) return fmt::format("{:.3f}", value).substr(1);
  return "0";
}

// Pale to dark; one hue, so that order is seen in grey as well.
std::string heat_colour(double share) {
  constexpr std::array<std::array<double, 3>, 4> kStops{
      {{247, 244, 233}, {250, 202, 133}, {224, 112, 74}, {103, 20, 56}}};
  double at = std::clamp(share, 0.0, 1.0) * (kStops.size() - 1);
  auto index = std::min(static_cast<size_t>(at), kStops.size() - 2);
  double part = at - static_cast<double>(index);
  std::array<int, 3> mixed{};
  for (size_t i = 0; i < 3; ++i)
    mixed[i] =
        static_cast<int>(std::lround(kStops[index][i] * (1 - part) + kStops[index + 1][i] * part));
  return fmt::format("#{:02x}{:02x}{:02x}", mixed[0], mixed[1], mixed[2]);
}

// Least and largest KL, on a scale of logarithms.
struct LogScale {
  double low = std::log10(kSmallestKl);
  double high = 0;

  double share(double value) const {
    return (std::log10(std::max(value, kSmallestKl)) - low) / (high - low);
  }
};

LogScale scale_of(const std::vector<double>& values) {
  double low = 1;
  double high = kSmallestKl * 10;
  for (double value : values) {
    low = std::min(low, std::max(value, kSmallestKl));
    high = std::max(high, value);
  }
  LogScale scale{std::log10(low), std::log10(high)};
  if (scale.high - scale.low < 0.1) scale.low = scale.high - 1;
  return scale;
}

std::string pair_name(const PlanBook& book) {
  return fmt::format("{} from {}", book.receiver, book.sender);
}

struct HeatPanel {
  const PlanBook& book;
  bool translated;
  Box area;
  double cell;
  int32_t step;
  LogScale scale;
};

void draw_heat_panel(Svg& svg, const HeatPanel& panel) {
  const PlanBook& book = panel.book;
  svg.text({panel.area.x, panel.area.y - 10}, panel.translated ? "translated" : "raw", "label");
  svg.box(panel.area, "frame");
  double unit = panel.cell / panel.step;
  for (const HeatCell& cell : book.heat_map) {
    if (cell.translated != panel.translated || cell.b >= cell.c) continue;
    double column = std::ceil(static_cast<double>(cell.c) / panel.step) - 1;
    Box box{panel.area.x + column * panel.cell, panel.area.y + cell.b * unit, panel.cell,
            panel.cell};
    double share = panel.scale.share(cell.kl);
    std::string tooltip = fmt::format("recompute {}-{}: KL {:.4f}, agreement {:.1f} %", cell.b,
                                      cell.c, cell.kl, 100 * cell.agreement);
    svg.box(box, "cell", heat_colour(share), tooltip);
    svg.text({box.x + panel.cell / 2, box.y + panel.cell / 2 + 3}, short_number(cell.kl),
             share > 0.6 ? "cell-light" : "cell-dark", TextAnchor::kMiddle);
  }
  for (int32_t layer = 0; layer < book.num_layers; layer += panel.step) {
    double at = (layer + panel.step / 2.0) * unit;
    svg.text({panel.area.x - 6, panel.area.y + at + 4}, std::to_string(layer), "tick",
             TextAnchor::kEnd);
    svg.text({panel.area.x + at, panel.area.y + panel.area.height + 15},
             std::to_string(std::min(layer + panel.step, book.num_layers)), "tick",
             TextAnchor::kMiddle);
  }
  svg.text({panel.area.x + panel.area.width / 2, panel.area.y + panel.area.height + 34},
           "recomputed up to layer c", "label", TextAnchor::kMiddle);
}

// Plain reuse has no block; its number stands in the corner that has no cells.
void draw_reuse_note(Svg& svg, const HeatPanel& panel) {
  for (const HeatCell& cell : panel.book.heat_map) {
    if (cell.translated != panel.translated || cell.b != cell.c) continue;
    svg.text({panel.area.x + 10, panel.area.y + panel.area.height - 12},
             fmt::format("nothing recomputed: {:.3f}", cell.kl), "label");
  }
}

// Layers per cell: transitions are its multiples. The last cell of a row may be narrower.
int32_t heat_step(const PlanBook& book) {
  int32_t step = book.num_layers;
  for (const HeatCell& cell : book.heat_map) {
    if (cell.b > 0) step = std::min(step, cell.b);
  }
  return std::max(1, step);
}

struct PlotArea {
  Box box;
  double x_max;
  LogScale scale;

  Point at(double x, double kl) const {
    double share = std::clamp(scale.share(kl), 0.0, 1.0);
    return {box.x + box.width * x / x_max, box.y + box.height * (1 - share)};
  }
};

void draw_log_grid(Svg& svg, const PlotArea& area) {
  for (int power = static_cast<int>(std::floor(area.scale.low)); power <= 1; ++power) {
    for (double factor : {1.0, 2.0, 5.0}) {
      double value = factor * std::pow(10.0, power);
      double share = area.scale.share(value);
      if (share < 0 || share > 1 || value < kSmallestKl) continue;
      double y = area.at(0, value).y;
      svg.line({area.box.x, y}, {area.box.x + area.box.width, y}, "grid");
      svg.text({area.box.x - 8, y + 4}, fmt::format("{:g}", value), "tick", TextAnchor::kEnd);
    }
  }
}

void draw_layer_ticks(Svg& svg, const PlotArea& area, int32_t num_layers) {
  int32_t step = num_layers > 20 ? 2 : 1;
  for (int32_t layer = 0; layer <= area.x_max; layer += step) {
    double x = area.at(layer, 1).x;
    svg.text({x, area.box.y + area.box.height + 16}, std::to_string(layer), "tick",
             TextAnchor::kMiddle);
  }
}

enum class LabelSide { kAbove, kBelow };

// Tokens that are read through all layers count for their share of them.
double layers_read(const ReusePlan& plan, int32_t num_layers) {
  return plan.recomputed_layers() + plan.look_permille / 1000.0 * num_layers;
}

void draw_entry(
    Svg& svg, const PlotArea& area, const PlanEntry& entry, int32_t num_layers, LabelSide side) {
  const char* style = entry.translated ? "translated" : "raw";
  double layers = layers_read(entry.plan, num_layers);
  std::string interval = fmt::format("{} interval", style);
  svg.line(area.at(layers, entry.quality.kl_low), area.at(layers, entry.quality.kl_high), interval);
  std::string score =
      entry.quality.score ? fmt::format(", score {:.3f}", *entry.quality.score) : "";
  std::string tooltip =
      fmt::format("{}{}: KL {:.4f} ({:.4f} to {:.4f}){}", entry.plan.to_string(num_layers),
                  entry.translated ? " translated" : "", entry.quality.kl, entry.quality.kl_low,
                  entry.quality.kl_high, score);
  svg.circle(area.at(layers, entry.quality.kl), 5, style, tooltip);
  if (entry.plan.b < entry.plan.c || entry.plan.look_permille > 0) {
    Point at = area.at(layers, entry.quality.kl);
    svg.text({at.x + 7, at.y + (side == LabelSide::kAbove ? -7 : 16)},
             entry.plan.to_string(num_layers), "tick");
  }
}

void draw_legend(Svg& svg, Point at) {
  svg.circle({at.x, at.y - 4}, 5, "raw");
  svg.text({at.x + 10, at.y}, "raw", "label");
  svg.circle({at.x + 60, at.y - 4}, 5, "translated");
  svg.text({at.x + 70, at.y}, "translated", "label");
}

}  // namespace

std::string heat_map_svg(const PlanBook& book) {
  bool has_translated =
      std::ranges::any_of(book.heat_map, [](const HeatCell& cell) { return cell.translated; });
  std::vector<double> values;
  for (const HeatCell& cell : book.heat_map) values.push_back(cell.kl);
  int32_t step = heat_step(book);
  double cell = 26;
  double side = cell * std::ceil(static_cast<double>(book.num_layers) / step);
  double gap = 60;
  double width = kLeft + side * (has_translated ? 2 : 1) + (has_translated ? gap : 0) + 24;
  std::string title = fmt::format("{}: divergence from full prefill", pair_name(book));
  Svg svg(std::max(width, 420.0), kTop + 14 + side + 52, title);
  svg.text({kLeft, 24}, title, "title");
  svg.turned_text({18, kTop + 14 + side / 2}, "recomputed from layer b", "label");
  for (int panel = 0; panel < (has_translated ? 2 : 1); ++panel) {
    Box area{kLeft + panel * (side + gap), kTop + 14, side, side};
    HeatPanel heat{book, panel == 1, area, cell, step, scale_of(values)};
    draw_heat_panel(svg, heat);
    draw_reuse_note(svg, heat);
  }
  return std::move(svg).finish();
}

std::string pareto_svg(const PlanBook& book) {
  std::vector<double> values;
  for (const PlanEntry& entry : book.frontier) {
    values.insert(values.end(), {0.7 * entry.quality.kl, entry.quality.kl_high});
  }
  for (const HeatCell& cell : book.heat_map) {
    if (cell.c - cell.b < book.num_layers) values.push_back(cell.kl);
  }
  std::string title = fmt::format("{}: layers recomputed against divergence", pair_name(book));
  Svg svg(760, 440, title);
  PlotArea area{{kLeft + 6, kTop, 760 - kLeft - 40, 440 - kTop - 60},
                static_cast<double>(book.num_layers),
                scale_of(values)};
  svg.text({kLeft, 24}, title, "title");
  draw_legend(svg, {kLeft + 6, 44});
  draw_log_grid(svg, area);
  draw_layer_ticks(svg, area, book.num_layers);
  svg.box(area.box, "frame");
  for (const HeatCell& cell : book.heat_map) {
    if (cell.c - cell.b == book.num_layers) continue;
    svg.circle(area.at(cell.c - cell.b, cell.kl), 2.5,
               cell.translated ? "translated faint" : "raw faint");
  }
  std::string front;
  for (const PlanEntry& entry : book.frontier) {
    Point at = area.at(layers_read(entry.plan, book.num_layers), entry.quality.kl);
    front += fmt::format("{}{:.2f} {:.2f} ", front.empty() ? "M" : "L", at.x, at.y);
  }
  if (!front.empty()) svg.path(front, "front");
  LabelSide side = LabelSide::kAbove;  // in turns, so that neighbours stay readable
  for (const PlanEntry& entry : book.frontier) {
    draw_entry(svg, area, entry, book.num_layers, side);
    side = side == LabelSide::kAbove ? LabelSide::kBelow : LabelSide::kAbove;
  }
  svg.text({area.box.x + area.box.width / 2, 440 - 14},
           fmt::format("recomputed layers of {}, shares of the tokens included", book.num_layers),
           "label", TextAnchor::kMiddle);
  svg.turned_text({16, area.box.y + area.box.height / 2}, "KL from full prefill, nats per token",
                  "label");
  return std::move(svg).finish();
}

std::string sensitivity_svg(const PlanBook& book) {
  double top = 1e-6;
  for (const LayerSensitivity& layer : book.sensitivity)
    top = std::max(top, layer.kl + layer.spread);
  std::string title = fmt::format("{}: divergence when one layer alone is reused", pair_name(book));
  Svg svg(760, 320, title);
  Box area{kLeft + 6, kTop - 8, 760 - kLeft - 30, 320 - kTop - 50};
  auto y_of = [&](double value) {
    return area.y + area.height * (1 - std::clamp(value / top, 0.0, 1.0));
  };
  svg.text({kLeft, 24}, title, "title");
  for (int i = 0; i <= 4; ++i) {
    double value = top * i / 4;
    svg.line({area.x, y_of(value)}, {area.x + area.width, y_of(value)}, "grid");
    svg.text({area.x - 8, y_of(value) + 4}, fmt::format("{:.2g}", value), "tick", TextAnchor::kEnd);
  }
  double slot = area.width / static_cast<double>(std::max<size_t>(1, book.sensitivity.size()));
  for (const LayerSensitivity& layer : book.sensitivity) {
    double x = area.x + slot * layer.layer;
    double y = y_of(layer.kl);
    svg.box({x + slot * 0.15, y, slot * 0.7, area.y + area.height - y}, "bar", "",
            fmt::format("layer {}: KL {:.4f}, standard deviation {:.4f}", layer.layer, layer.kl,
                        layer.spread));
    svg.line({x + slot / 2, y_of(layer.kl - layer.spread)},
             {x + slot / 2, y_of(layer.kl + layer.spread)}, "whisker");
    svg.text({x + slot / 2, area.y + area.height + 15}, std::to_string(layer.layer), "tick",
             TextAnchor::kMiddle);
  }
  svg.line({area.x, area.y + area.height}, {area.x + area.width, area.y + area.height}, "axis");
  svg.text({area.x + area.width / 2, 320 - 12},
           "reused layer; whiskers: standard deviation over contexts", "label",
           TextAnchor::kMiddle);
  svg.turned_text({16, area.y + area.height / 2}, "KL, nats per token", "label");
  return std::move(svg).finish();
}

void write_plots(const std::filesystem::path& book_path, const PlanBook& book) {
  auto write = [&](const char* kind, const std::string& svg) {
    write_file_atomically(
        std::filesystem::path(book_path).replace_extension(std::string(kind) + ".svg"), svg);
  };
  write(".heatmap", heat_map_svg(book));
  write(".pareto", pareto_svg(book));
  write(".sensitivity", sensitivity_svg(book));
}

}  // namespace droidspeak
