#include "sharing/reuse_plan.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"

namespace droidspeak {

namespace {

std::string share_text(int32_t permille) {
  if (permille == 0) return "";
  if (permille % 10 == 0) return fmt::format("+{}%", permille / 10);
  return fmt::format("+{}.{}%", permille / 10, permille % 10);
}

// The whole of `text`, digits only.
std::optional<int32_t> parse_number(std::string_view text) {
  int32_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || text.starts_with('-'))
    return std::nullopt;
  return number;
}

std::optional<ReusePlan> parse_layers(std::string_view text, int32_t num_layers) {
  if (text == "reuse") return ReusePlan::reuse_all();
  int32_t numbers[3] = {};
  for (int i = 0; i < 3; ++i) {
    const size_t comma = i < 2 ? text.find(',') : text.size();
    if (comma == std::string_view::npos) return std::nullopt;
    std::optional<int32_t> number = parse_number(text.substr(0, comma));
    if (!number || *number > num_layers || (i > 0 && *number < numbers[i - 1])) return std::nullopt;
    numbers[i] = *number;
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  ReusePlan plan{numbers[0], numbers[1], numbers[2]};
  return plan.is_reuse_all() ? ReusePlan::reuse_all() : plan;  // "0,2,2" says the same
}

// "10%", "2.5%" to thousandths.
std::optional<int32_t> parse_share(std::string_view text) {
  if (!text.ends_with('%')) return std::nullopt;
  text.remove_suffix(1);
  const size_t point = text.find('.');
  std::optional<int32_t> whole = parse_number(text.substr(0, point));
  std::optional<int32_t> tenths = 0;
  if (point != std::string_view::npos)
    tenths = text.size() == point + 2 ? parse_number(text.substr(point + 1)) : std::nullopt;
  if (!whole || !tenths || *whole > 100) return std::nullopt;
  const int32_t permille = 10 * *whole + *tenths;
  return permille >= 1 && permille <= 1000 ? std::optional(permille) : std::nullopt;
}

}  // namespace

std::vector<int32_t> ReusePlan::reused_layers(int32_t num_layers) const {
  std::vector<int32_t> layers;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    if (!recomputes(layer)) layers.push_back(layer);
  }
  return layers;
}

std::vector<int32_t> ReusePlan::recomputed_layer_list(int32_t num_layers) const {
  std::vector<int32_t> layers;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    if (recomputes(layer)) layers.push_back(layer);
  }
  return layers;
}

std::string ReusePlan::to_string(int32_t num_layers) const {
  if (is_full(num_layers)) return "full";
  std::string text = is_reuse_all() ? "reuse" : fmt::format("{},{},{}", a, b, c);
  return text + share_text(look_permille);
}

PlanRequest parse_plan_request(std::string_view text, int32_t num_layers) {
  if (text == "auto") return {.is_auto = true};
  if (text == "reuse") return {.is_raw = true, .plan = ReusePlan::reuse_all()};
  const bool is_raw = text.size() > 1 && text.ends_with('r');
  return {.is_raw = is_raw,
          .plan = parse_plan(is_raw ? text.substr(0, text.size() - 1) : text, num_layers)};
}

ReusePlan parse_plan(std::string_view text, int32_t num_layers) {
  if (text == "full") return ReusePlan::full(num_layers);
  const size_t plus = text.find('+');
  std::optional<ReusePlan> plan = parse_layers(text.substr(0, plus), num_layers);
  if (plan && plus != std::string_view::npos) {
    std::optional<int32_t> share = parse_share(text.substr(plus + 1));
    plan->look_permille = share.value_or(0);
    if (!share || plan->is_full(num_layers)) plan.reset();
  }
  if (plan) return *plan;
  throw Failure(
      ErrorCode::kInvalidArgument,
      fmt::format("plan \"{}\": expected full, reuse, or a,b,c with 0 <= a <= b <= c <= {}; the "
                  "last two may end in a share of the tokens from +0.1% to +100%",
                  text, num_layers));
}

}  // namespace droidspeak
