// From measurements to a plan book's frontier: which plans are worth having, which neighbours are
// worth trying, what quality and cost a plan is given.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "model/model_config.h"
#include "profiler/tried_plan.h"
#include "sharing/plan_book.h"

namespace droidspeak {

// Mean KL of every plan that was measured.
using PlanDivergences = std::map<TriedPlan, double>;

// Their likely_loss() or shown_loss().
using PlanLosses = std::map<TriedPlan, double>;

// What following a plan takes, in any unit.
using PlanCost = std::function<double(const TriedPlan&)>;

// Plans with the least loss for their cost: each one loses at least 3 % less than all cheaper ones
// (a KL that is 2 % lower), or is the first to reach a quality of 0.95, 0.98 or 0.99. Ascending by
// cost; plans that cost as much as full prefill, `full_cost`, are left out.
std::vector<TriedPlan> pareto_plans(const PlanLosses& plans,
                                    const PlanCost& cost,
                                    double full_cost);

struct RefinementLimits {
  int32_t num_layers = 0;
  double context_layers = 0;          // layer passes per context that may be spent
  std::vector<int32_t> input_layers;  // where translated E is to be had
  size_t max_plans = 40;
};

// Frontier plans and their single-layer and a > 0 neighbours, those near the `auto` choice first,
// as many as the budget allows. Plans of one (b, translated) share their recomputed layers.
std::vector<TriedPlan> refinement_plans(const PlanLosses& plans, const RefinementLimits& limits);
// Layer passes over the context that trying the plans takes, the sender's own reading not counted.
int32_t context_layers(const std::vector<TriedPlan>& plans);

// What plans need of a context besides the sender's reading.
struct PlanNeeds {
  std::vector<int32_t> inputs;             // layers whose E they start from
  std::vector<int32_t> translated_inputs;  // of these, where it is translated
  bool is_translated = false;              // any of them
};

PlanNeeds needs_of(const std::vector<TriedPlan>& plans);
// Layers that the receiver has to run from its own embeddings.
int32_t receiver_layers(const std::vector<TriedPlan>& plans);

// Share of full prefill's score that a plan loses: (KL / 1.08)^1.5 with the mean KL, or the share
// that the known answer's probability has lost, whichever is more. Plans that are worth nothing may
// have more than 1. See docs/plan_book.md.
// While plans are searched for, a loss counts as far as it is sure by one standard error: few rows
// condemn none by chance.
double likely_loss(const PlanQuality& quality);
// What is promised: a loss counts unless it is ruled out by one standard error.
double shown_loss(const PlanQuality& quality);
// Of the shown loss: 1 = as good as full prefill, 0 = worth nothing. By KL alone 0.050 nats per
// token give 0.99.
double quality_index(const PlanQuality& quality);

struct CostShape {
  ModelConfig config;
  double context_share = 1;  // context tokens / prompt tokens
  int32_t map_rank = 0;
};

// Predicted prefill work as a share of full prefill's.
double relative_cost(const TriedPlan& tried, const CostShape& shape);

// Plans that look at tokens and are worth measuring: every share on plain reuse and on the
// cheapest frontier blocks among `plans`.
std::vector<TriedPlan> look_plans(const PlanLosses& plans, const CostShape& shape);

}  // namespace droidspeak
