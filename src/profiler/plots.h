// Plots of a plan book as SVG text. They follow the reader's light or dark scheme and need nothing
// from outside.
#pragma once

#include <filesystem>
#include <string>

#include "sharing/plan_book.h"

namespace droidspeak {

// KL of every plan (0, b, c): raw, and beside it translated where there are maps.
std::string heat_map_svg(const PlanBook& book);
// Recomputed layers against KL with 95 % intervals: the frontier, and the other plans behind it.
std::string pareto_svg(const PlanBook& book);
// KL when only one layer is reused, with its spread over contexts.
std::string sensitivity_svg(const PlanBook& book);

// NAME.heatmap.svg, NAME.pareto.svg and NAME.sensitivity.svg beside the book NAME.json.
void write_plots(const std::filesystem::path& book_path, const PlanBook& book);

}  // namespace droidspeak
