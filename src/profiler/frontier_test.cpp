#include "profiler/frontier.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

namespace droidspeak {
namespace {

TriedPlan raw(int32_t b, int32_t c) {
  return {{0, b, c}, false};
}

TriedPlan mapped(int32_t b, int32_t c) {
  return {{0, b, c}, true};
}

// Every plan of 12 layers in steps of two; KL falls with the block, most around layers 6 to 10.
PlanLosses example() {
  PlanDivergences plans;
  plans[raw(0, 0)] = 0.4;
  plans[mapped(0, 0)] = 0.3;
  for (int32_t b = 2; b < 12; b += 2) {
    for (int32_t c = b + 2; c <= 12; c += 2) {
      double covered = std::max(0, std::min(c, 10) - std::max(b, 6));
      plans[raw(b, c)] = 0.4 - 0.07 * covered - 0.005 * (c - b);
      plans[mapped(b, c)] = plans[raw(b, c)] / 2;
    }
  }
  PlanLosses losses;
  for (const auto& [tried, kl] : plans) {
    PlanQuality quality;
    quality.kl = kl;
    losses[tried] = likely_loss(quality);
  }
  return losses;
}

double by_layers(const TriedPlan& tried) {
  return tried.plan.recomputed_layers();
}

TEST(ParetoPlans, EveryEntryCostsMoreAndLosesLess) {
  PlanLosses plans = example();
  std::vector<TriedPlan> frontier = pareto_plans(plans, by_layers, 12);
  ASSERT_GE(frontier.size(), 3u);
  EXPECT_EQ(frontier.front(), mapped(0, 0));
  for (size_t i = 1; i < frontier.size(); ++i) {
    EXPECT_GT(frontier[i].plan.recomputed_layers(), frontier[i - 1].plan.recomputed_layers());
    EXPECT_LT(plans[frontier[i]], plans[frontier[i - 1]]);
  }
}

TEST(ParetoPlans, LeavesOutPlansThatRecomputeEverything) {
  PlanLosses plans{{raw(0, 0), 0.3}, {raw(0, 4), 0.0}};
  EXPECT_EQ(pareto_plans(plans, by_layers, 4), std::vector<TriedPlan>{raw(0, 0)});
}

TEST(ParetoPlans, SmallGainsCountOnlyWhereTheyReachAFloor) {
  PlanLosses plans{{raw(0, 0), 0.3},     {raw(2, 3), 0.295},  {raw(2, 4), 0.0201},
                   {raw(2, 5), 0.01999}, {raw(2, 6), 0.0199}, {raw(2, 7), 0.0099}};
  EXPECT_EQ(pareto_plans(plans, by_layers, 12),
            (std::vector<TriedPlan>{raw(0, 0), raw(2, 4), raw(2, 5), raw(2, 7)}));
}

TEST(ParetoPlans, HoldTheCheapestPlanOfEveryUsualFloor) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> loss(0, 0.06);
  for (int round = 0; round < 200; ++round) {
    PlanLosses plans;
    for (int32_t b = 0; b < 10; ++b) {
      for (int32_t c = b + 1; c < 12; ++c) plans[raw(b, c)] = loss(random);
    }
    const std::vector<TriedPlan> frontier = pareto_plans(plans, by_layers, 12);
    for (double floor : {0.95, 0.98, 0.99}) {
      double cheapest = 12;
      double found = 12;
      for (const auto& [tried, lost] : plans) {
        if (1 - lost >= floor) cheapest = std::min(cheapest, by_layers(tried));
      }
      for (const TriedPlan& tried : frontier) {
        if (1 - plans[tried] >= floor) found = std::min(found, by_layers(tried));
      }
      EXPECT_EQ(found, cheapest) << floor;
    }
  }
}

TEST(RefinementPlans, StayWithinTheBudgetAndHoldNeighboursOfTheChoice) {
  PlanLosses plans = example();
  RefinementLimits limits{
      .num_layers = 12, .context_layers = 24, .input_layers = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}};
  std::vector<TriedPlan> chosen = refinement_plans(plans, limits);
  EXPECT_LE(context_layers(chosen), 24);
  auto has = [&](const TriedPlan& tried) {
    return std::ranges::find(chosen, tried) != chosen.end();
  };
  EXPECT_TRUE(has(raw(0, 0)));
  EXPECT_TRUE(has(mapped(6, 10)));
  EXPECT_TRUE(has(mapped(6, 9)));
  EXPECT_TRUE(has(mapped(7, 10)));
  EXPECT_TRUE(has({{1, 6, 10}, true}));
}

TEST(RefinementPlans, WithoutBudgetOnlyWhatCostsNothing) {
  RefinementLimits limits{.num_layers = 12, .context_layers = 0, .input_layers = {}};
  for (const TriedPlan& tried : refinement_plans(example(), limits))
    EXPECT_TRUE(tried.plan.is_reuse_all());
}

TEST(ContextLayers, PlansOfOneTransitionShareTheirWork) {
  EXPECT_EQ(context_layers({raw(6, 8), raw(6, 10), raw(6, 9)}), 4);
  EXPECT_EQ(context_layers({raw(6, 8), mapped(6, 8)}), 4);
  EXPECT_EQ(context_layers({{{2, 6, 8}, false}}), 4);  // two own layers, two recomputed
  EXPECT_EQ(context_layers({{{0, 0, 5}, false}}), 5);
}

PlanQuality with_kl(double kl) {
  PlanQuality quality;
  quality.kl = kl;
  return quality;
}

PlanQuality with_gold(double kl, double lost, double error) {
  PlanQuality quality = with_kl(kl);
  quality.gold_lost = lost;
  quality.gold_lost_error = error;
  return quality;
}

TEST(QualityIndex, FallsWithDivergence) {
  EXPECT_EQ(quality_index(with_kl(0)), 1);
  EXPECT_NEAR(quality_index(with_kl(0.050)), 0.99, 1e-4);
  EXPECT_LT(quality_index(with_kl(0.3)), 0.95);
  EXPECT_EQ(quality_index(with_kl(5)), 0);
}

TEST(QualityIndex, IsAtMostWhatTheKnownAnswerKeeps) {
  const double by_kl = quality_index(with_kl(0.05));
  EXPECT_NEAR(quality_index(with_gold(0.05, 0.10, 0.02)), 0.88, 1e-12);
  EXPECT_NEAR(quality_index(with_gold(0.05, 0, 0.03)), 0.97, 1e-12) << "not ruled out";
  EXPECT_EQ(quality_index(with_gold(0.05, 0.005, 0.001)), by_kl) << "KL says more";
  EXPECT_EQ(quality_index(with_gold(0.05, -0.3, 0.01)), by_kl) << "a gain is none";
  EXPECT_EQ(quality_index(with_gold(0, -0.3, 0.01)), 1);
  EXPECT_EQ(quality_index(with_gold(0, 1, 0)), 0);
  EXPECT_EQ(quality_index(with_gold(5, 0, 0)), 0);
}

TEST(QualityIndex, ScoresHaveNoPartInIt) {
  PlanQuality quality = with_kl(0.05);
  quality.score = 0.1;
  quality.score_low = -0.3;
  quality.score_high = -0.2;
  EXPECT_EQ(quality_index(quality), quality_index(with_kl(0.05)));
}

TEST(LikelyLoss, CountsWhatIsSureAndShownLossWhatIsPossible) {
  const PlanQuality unsure = with_gold(0, 0.04, 0.03);
  EXPECT_NEAR(likely_loss(unsure), 0.01, 1e-12);
  EXPECT_NEAR(shown_loss(unsure), 0.07, 1e-12);
  EXPECT_EQ(likely_loss(with_kl(0.2)), shown_loss(with_kl(0.2)));
}

TEST(LikelyLoss, OrdersPlansThatAreWorthNothing) {
  EXPECT_GT(likely_loss(with_kl(3)), likely_loss(with_kl(2)));
  EXPECT_GT(likely_loss(with_kl(2)), 1);
}

TEST(RelativeCost, GrowsWithLayersAndWithTranslation) {
  CostShape shape;
  shape.config.num_layers = 30;
  shape.config.d_model = 576;
  shape.config.num_heads = 9;
  shape.config.num_kv_heads = 3;
  shape.config.head_dim = 64;
  shape.config.ffn_dim = 1536;
  shape.context_share = 0.95;
  shape.map_rank = 32;
  double reuse = relative_cost({ReusePlan::reuse_all(), false}, shape);
  double eight = relative_cost(raw(16, 24), shape);
  double translated = relative_cost(mapped(16, 24), shape);
  EXPECT_NEAR(reuse, 0.05, 1e-12);
  EXPECT_NEAR(eight, 0.05 + 0.95 * (7 + 1.0 / 6) / 30, 1e-12)
      << "the last layer stores its K/V only";
  EXPECT_GT(translated, eight);
  EXPECT_LT(translated, eight + 0.05);
  EXPECT_NEAR(relative_cost({ReusePlan::full(30), false}, shape), 1, 1e-12);
  EXPECT_NEAR(relative_cost({{0, 0, 0, 100}, false}, shape), 2 * 0.05 + 0.95 * 0.1, 1e-12)
      << "the suffix runs twice";
  EXPECT_NEAR(relative_cost({{0, 16, 24, 50}, false}, shape), eight + 0.05 + 0.95 * 0.05, 1e-12);
}

TEST(LookPlans, AreAllSharesOnPlainReuseAndOnTheCheapestBlocks) {
  CostShape shape;
  shape.config.num_layers = 12;
  shape.config.d_model = 64;
  const std::vector<TriedPlan> looks = look_plans(example(), shape);
  std::map<TriedPlan, size_t> shares;
  for (const TriedPlan& look : looks) {
    EXPECT_GT(look.plan.look_permille, 0);
    ++shares[look.layers()];
  }
  EXPECT_EQ(shares[raw(0, 0)], 5u);
  EXPECT_EQ(shares[mapped(0, 0)], 5u);
  EXPECT_LE(shares.size(), 6u);
  EXPECT_GE(shares.size(), 3u);
  for (const auto& [base, count] : shares) EXPECT_EQ(count, 5u);
}

}  // namespace
}  // namespace droidspeak
