#include "profiler/gate_choice.h"

#include <gtest/gtest.h>

namespace droidspeak {
namespace {

std::vector<GateTrial> trials_of(const std::vector<std::vector<double>>& changes) {
  std::vector<GateTrial> trials;
  for (const std::vector<double>& row : changes) {
    GateTrial trial{1.0, {}};
    for (double change : row) trial.without.push_back(trial.with_all + change);
    trials.push_back(trial);
  }
  return trials;
}

TEST(GateChoice, LeavesOutWhatHurtsBeyondChance) {
  // Group 0 helps, 1 hurts everywhere, 2 hurts here and helps there, 3 does nothing.
  std::vector<GateTrial> trials = trials_of({{0.2, -0.1, -0.5, 0},
                                             {0.2, -0.1, 0.1, 0},
                                             {0.2, -0.2, -0.5, 0},
                                             {-0.1, 0.0, 0.1, 0},
                                             {0.2, -0.1, 0.4, 0},
                                             {0.2, -0.1, 0.1, 0}});
  EXPECT_EQ(choose_gates(trials), std::vector<size_t>{1});
}

TEST(GateChoice, FewContextsSayNothing) {
  EXPECT_TRUE(choose_gates(trials_of({{-1}, {-1}, {-1}, {-1}, {-1}})).empty());
}

}  // namespace
}  // namespace droidspeak
