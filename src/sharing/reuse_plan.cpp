#include "sharing/reuse_plan.h"

#include <charconv>

#include <fmt/format.h>

#include "base/error.h"

namespace droidspeak {

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
  if (is_reuse_all()) return "reuse";
  return fmt::format("{},{},{}", a, b, c);
}

ReusePlan parse_plan(std::string_view text, int32_t num_layers) {
  if (text == "full") return ReusePlan::full(num_layers);
  if (text == "reuse") return ReusePlan::reuse_all();
  auto refuse = [&]() {
    return Failure(
        ErrorCode::kInvalidArgument,
        fmt::format("plan \"{}\": expected full, reuse, or a,b,c with 0 <= a <= b <= c <= {}", text,
                    num_layers));
  };
  int32_t numbers[3] = {};
  const char* at = text.data();
  const char* end = at + text.size();
  for (int i = 0; i < 3; ++i) {
    auto [next, error] = std::from_chars(at, end, numbers[i]);
    bool is_last = i == 2;
    if (error != std::errc() || (is_last ? next != end : next == end || *next != ','))
      throw refuse();
    at = is_last ? next : next + 1;
  }
  ReusePlan plan{numbers[0], numbers[1], numbers[2]};
  if (plan.a < 0 || plan.a > plan.b || plan.b > plan.c || plan.c > num_layers) throw refuse();
  return plan;
}

}  // namespace droidspeak
