#include "engine/plan_chooser.h"

#include <gtest/gtest.h>

namespace droidspeak {
namespace {

PlanChoice candidate(double quality, double seconds) {
  return {.quality = quality, .predicted_seconds = seconds};
}

TEST(PickPlan, TakesTheFastestAboveTheFloorWithoutATarget) {
  std::vector<PlanChoice> candidates = {candidate(1, 4), candidate(0.995, 1.5), candidate(0.99, 1),
                                        candidate(0.9, 0.1)};
  EXPECT_DOUBLE_EQ(pick(candidates, 0.99, 0).predicted_seconds, 1);
  EXPECT_DOUBLE_EQ(pick(candidates, 0.992, 0).predicted_seconds, 1.5);
  EXPECT_DOUBLE_EQ(pick(candidates, 0.5, 0).predicted_seconds, 0.1);
}

TEST(PickPlan, TakesTheBestQualityThatMeetsTheTarget) {
  std::vector<PlanChoice> candidates = {candidate(1, 4), candidate(0.995, 1.5), candidate(0.99, 1)};
  EXPECT_DOUBLE_EQ(pick(candidates, 0.9, 5).predicted_seconds, 4);
  EXPECT_DOUBLE_EQ(pick(candidates, 0.9, 2).predicted_seconds, 1.5);
  EXPECT_DOUBLE_EQ(pick(candidates, 0.9, 0.2).predicted_seconds, 1) << "none meets it: the fastest";
}

TEST(PickPlan, ComputesWhenLoadingIsDearer) {
  std::vector<PlanChoice> candidates = {candidate(1, 1), candidate(1, 3)};
  EXPECT_DOUBLE_EQ(pick(candidates, 0.99, 0).predicted_seconds, 1);
  EXPECT_DOUBLE_EQ(pick(candidates, 0.99, 10).predicted_seconds, 1);
}

TEST(PickPlan, ComputesWhenNothingReachesTheFloor) {
  std::vector<PlanChoice> candidates = {candidate(1, 4), candidate(0.9, 1)};
  EXPECT_DOUBLE_EQ(pick(candidates, 2, 0).predicted_seconds, 4)
      << "a floor above 1 means full quality";
}

TEST(CostModel, OverlapsLoadingAndRecomputing) {
  CostModel costs(
      {.token_seconds = 1e-3, .attention_seconds = 0, .output_seconds = 0, .host_bandwidth = 1000},
      10);
  PrefillWork work{
      .context_tokens = 100, .recomputed_layers = 4, .load_bytes = 100, .suffix_tokens = 10};
  EXPECT_NEAR(costs.prefill_seconds(work), 0.4 + 0.1, 1e-12);
  work.load_bytes = 1000;
  EXPECT_NEAR(costs.prefill_seconds(work), 1.0 + 0.1, 1e-12);
}

TEST(CostModel, GrowsWithTheContextBeforeTheTokens) {
  CostModel costs({.token_seconds = 1e-3, .attention_seconds = 1e-5}, 10);
  EXPECT_NEAR(costs.compute_seconds(0, 100, 1), 0.1 + 1e-5 * 5000, 1e-12);
  EXPECT_NEAR(costs.compute_seconds(1000, 100, 2), 2 * (0.1 + 1e-5 * 105000), 1e-12);
  EXPECT_NEAR(costs.compute_seconds(0, 200, 1),
              costs.compute_seconds(0, 100, 1) + costs.compute_seconds(100, 100, 1), 1e-12)
      << "chunks add up to the whole";
}

TEST(CostModel, LearnsFromMeasurements) {
  CostModel costs({}, 10);
  double wanted = 3 * costs.compute_seconds(0, 512, 10);
  for (int i = 0; i < 50; ++i) costs.observe_compute(costs.compute_seconds(0, 512, 10), wanted);
  EXPECT_NEAR(costs.compute_seconds(0, 512, 10) / wanted, 1, 0.01);
  for (int i = 0; i < 100; ++i) costs.observe_load(1000000, Tier::kDisk, 0.1);
  EXPECT_NEAR(costs.load_seconds(1000000, Tier::kDisk), 0.1, 0.01);
}

}  // namespace
}  // namespace droidspeak
