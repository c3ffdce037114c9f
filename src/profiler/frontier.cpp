#include "profiler/frontier.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace droidspeak {
namespace {

constexpr double kLeastGain = 0.97;
// Divergence at which a plan loses everything; docs/plan_book.md has the fit. The one per cent of
// `auto` lies at 0.050.
constexpr double kWorthlessKl = 1.08;
constexpr double kAutoFloor = 0.99;
constexpr double kUsualFloors[] = {0.95, 0.98, kAutoFloor};
constexpr int32_t kLookShares[] = {30, 50, 100, 150, 250};  // in thousandths
// More layers than those of the cheapest blocks are better spent on tokens.
constexpr size_t kLookedAtBlocks = 4;

double index_of(double loss) {
  return 1 - std::clamp(loss, 0.0, 1.0);
}

// With the known answer's loss moved by so many standard errors.
double loss_of(const PlanQuality& quality, double errors) {
  double by_kl = std::pow(quality.kl / kWorthlessKl, 1.5);
  if (!quality.gold_lost || !quality.gold_lost_error) return by_kl;
  return std::max(by_kl, *quality.gold_lost + errors * *quality.gold_lost_error);
}

// Whether a plan with this loss is worth having beside cheaper ones that lose `best`.
bool is_better(double loss, double best) {
  auto is_first = [&](double floor) { return index_of(loss) >= floor && index_of(best) < floor; };
  return loss < best * kLeastGain || std::ranges::any_of(kUsualFloors, is_first);
}

double num_layers_of(const TriedPlan& tried) {
  return tried.plan.recomputed_layers();
}

// Collects plans as long as their context work stays within the budget.
class Refinement {
 public:
  explicit Refinement(const RefinementLimits& limits) : limits_(limits) {}

  void add(const TriedPlan& tried) {
    if (!is_possible(tried) || plans_.size() >= limits_.max_plans ||
        std::ranges::find(plans_, tried) != plans_.end())
      return;
    plans_.push_back(tried);
    if (context_layers(plans_) > limits_.context_layers) plans_.pop_back();
  }

  // What needs no other transition layer.
  void add_near(const TriedPlan& tried) {
    const ReusePlan& plan = tried.plan;
    if (plan.is_reuse_all()) return;
    add({{plan.a, plan.b, plan.c - 1}, tried.translated});
    add({{plan.a, plan.b, plan.c + 1}, tried.translated});
    for (int32_t a : {1, 2}) {
      if (plan.b > 2) add({{a, plan.b, plan.c}, tried.translated});
    }
  }

  void add_shifted(const TriedPlan& tried) {
    const ReusePlan& plan = tried.plan;
    if (plan.is_reuse_all() || plan.b == 0) return;
    for (int32_t shift : {1, -1}) {
      for (int32_t end : {plan.c, plan.c + shift})
        add({{plan.a, plan.b + shift, end}, tried.translated});
    }
  }

  std::vector<TriedPlan> take() { return std::move(plans_); }

 private:
  bool is_possible(const TriedPlan& tried) const {
    const ReusePlan& plan = tried.plan;
    if (plan.a < 0 || plan.a > plan.b || plan.b > plan.c || plan.c > limits_.num_layers)
      return false;
    if (plan.b == plan.c && !plan.is_reuse_all()) return false;
    bool has_map = std::ranges::find(limits_.input_layers, plan.b) != limits_.input_layers.end();
    return !tried.translated || !plan.needs_layer_input() || has_map;
  }

  const RefinementLimits& limits_;
  std::vector<TriedPlan> plans_;
};

}  // namespace

std::vector<TriedPlan> pareto_plans(const PlanLosses& plans,
                                    const PlanCost& cost,
                                    double full_cost) {
  std::vector<std::pair<TriedPlan, double>> ordered(plans.begin(), plans.end());
  std::ranges::stable_sort(ordered, [&](const auto& x, const auto& y) {
    double left = cost(x.first);
    double right = cost(y.first);
    return left != right ? left < right : x.second < y.second;
  });
  std::vector<TriedPlan> frontier;
  double best = 0;
  for (const auto& [tried, loss] : ordered) {
    if (cost(tried) >= full_cost) continue;
    if (!frontier.empty() && !is_better(loss, best)) continue;
    frontier.push_back(tried);
    best = loss;
  }
  return frontier;
}

PlanNeeds needs_of(const std::vector<TriedPlan>& plans) {
  std::set<int32_t> inputs;
  std::set<int32_t> translated_inputs;
  bool is_translated = false;
  for (const TriedPlan& tried : plans) {
    is_translated = is_translated || tried.translated;
    if (!tried.plan.needs_layer_input()) continue;
    inputs.insert(tried.plan.b);
    if (tried.translated) translated_inputs.insert(tried.plan.b);
  }
  return {{inputs.begin(), inputs.end()},
          {translated_inputs.begin(), translated_inputs.end()},
          is_translated};
}

int32_t receiver_layers(const std::vector<TriedPlan>& plans) {
  int32_t layers = 0;
  for (const TriedPlan& tried : plans) {
    bool is_own = !tried.plan.needs_layer_input() && !tried.plan.is_reuse_all();
    layers = std::max(layers, is_own ? tried.plan.c : tried.plan.a);
  }
  return layers;
}

int32_t context_layers(const std::vector<TriedPlan>& plans) {
  std::map<std::pair<bool, int32_t>, int32_t> ends;  // furthest c by (translated, b)
  for (const TriedPlan& tried : plans) {
    if (!tried.plan.needs_layer_input()) continue;
    int32_t& end = ends[{tried.translated, tried.plan.b}];
    end = std::max(end, tried.plan.c);
  }
  int32_t layers = receiver_layers(plans);
  for (const auto& [start, end] : ends) layers += end - start.second;
  return layers;
}

std::vector<TriedPlan> refinement_plans(const PlanLosses& plans, const RefinementLimits& limits) {
  std::vector<TriedPlan> frontier = pareto_plans(plans, num_layers_of, limits.num_layers);
  auto is_good = [&](const TriedPlan& tried) { return index_of(plans.at(tried)) >= kAutoFloor; };
  auto chosen = std::ranges::find_if(frontier, is_good);
  if (chosen == frontier.end() && !frontier.empty()) --chosen;
  // Outwards from the plan that `auto` would take.
  std::vector<TriedPlan> ordered;
  auto centre = chosen - frontier.begin();
  for (std::ptrdiff_t distance = 0; distance < std::ssize(frontier); ++distance) {
    for (std::ptrdiff_t i : std::set<std::ptrdiff_t>{centre - distance, centre + distance}) {
      if (i >= 0 && i < std::ssize(frontier)) ordered.push_back(frontier[static_cast<size_t>(i)]);
    }
  }
  Refinement refinement(limits);
  for (const auto& [tried, loss] : plans) {
    if (tried.plan.is_reuse_all()) refinement.add(tried);
  }
  if (!ordered.empty()) {
    refinement.add(ordered.front());
    refinement.add_near(ordered.front());
    refinement.add_shifted(ordered.front());
  }
  for (const TriedPlan& tried : ordered) refinement.add(tried);
  for (const TriedPlan& tried : ordered) refinement.add_near(tried);
  for (const TriedPlan& tried : ordered) refinement.add_shifted(tried);
  return refinement.take();
}

double likely_loss(const PlanQuality& quality) {
  return loss_of(quality, -1);
}

double shown_loss(const PlanQuality& quality) {
  return loss_of(quality, 1);
}

double quality_index(const PlanQuality& quality) {
  return index_of(shown_loss(quality));
}

double relative_cost(const TriedPlan& tried, const CostShape& shape) {
  const ModelConfig& c = shape.config;
  double layers = c.num_layers;
  double recomputed = tried.plan.is_full(c.num_layers) ? 1 : tried.plan.recompute_work() / layers;
  double translation = 0;
  if (tried.translated) {
    double layer_weights =
        static_cast<double>(c.d_model) *
        (c.qkv_columns() + c.q_columns() +
         3.0 * (c.ffn_dim + static_cast<double>(c.experts.per_row) * c.experts.ffn_dim));
    double map_weights = 2.0 * 2.0 * c.kv_columns() * shape.map_rank;
    // Twice the multiplications: gathering and scattering the rows takes as long again.
    translation = (1 - tried.plan.recomputed_layers() / layers) * 2 * map_weights / layer_weights;
  }
  double suffix = 1 - shape.context_share;
  double looked_at = tried.plan.look_permille / 1000.0;
  // Whoever looks at tokens reads the suffix twice.
  return (looked_at > 0 ? 2 : 1) * suffix +
         shape.context_share * (recomputed + translation + looked_at);
}

std::vector<TriedPlan> look_plans(const PlanLosses& plans, const CostShape& shape) {
  std::vector<TriedPlan> bases;
  for (const auto& [tried, loss] : plans) {
    if (tried.plan.is_reuse_all()) bases.push_back(tried);
  }
  auto cost = [&](const TriedPlan& tried) { return relative_cost(tried, shape); };
  size_t blocks = 0;
  for (const TriedPlan& tried : pareto_plans(plans, cost, 1)) {
    if (tried.plan.is_reuse_all() || ++blocks > kLookedAtBlocks) continue;
    bases.push_back(tried);
  }
  std::vector<TriedPlan> looks;
  for (TriedPlan tried : bases) {
    for (int32_t permille : kLookShares) {
      tried.plan.look_permille = permille;
      looks.push_back(tried);
    }
  }
  return looks;
}

}  // namespace droidspeak
