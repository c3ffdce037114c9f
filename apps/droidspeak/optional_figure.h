// Figures that may be missing, as commands print them.
#pragma once

#include <optional>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace droidspeak {

inline nlohmann::json or_null(const std::optional<double>& figure) {
  return figure ? nlohmann::json(*figure) : nlohmann::json();
}

inline std::string or_dash(const std::optional<double>& figure, int digits) {
  return figure ? fmt::format("{:.{}f}", *figure, digits) : "-";
}

}  // namespace droidspeak
