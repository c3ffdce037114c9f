#include "ops/cpu/experts.h"

#include <cmath>
#include <limits>
#include <set>

#include <gtest/gtest.h>

#include "ops/cpu/reference.h"

namespace droidspeak::cpu {
namespace {

constexpr auto kOfAll = ExpertChoice::Weights::kOfAll;
constexpr auto kOfChosen = ExpertChoice::Weights::kOfChosen;

class ExpertsTest : public testing::Test {
 protected:
  std::mt19937 random_{5};
  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Ops> ops_ = make_cpu_ops(*device_, 2);
};

TEST_F(ExpertsTest, ChoosesTheLargestLogitsAndWeighsThemBySoftmax) {
  constexpr int64_t kRows = 40;
  for (int64_t experts : {1, 8, 60, 128}) {
    for (int32_t per_row : {1, 2, 8}) {
      if (per_row > experts) continue;
      Floats logits = random_floats(random_, kRows * experts, 3);
      for (auto kind : {kOfAll, kOfChosen}) {
        std::vector<int32_t> chosen(static_cast<size_t>(kRows * per_row));
        Floats weights(chosen.size());
        ops_->choose_experts(view_of(logits, kRows, experts), {per_row, kind}, chosen,
                             view_of(weights, kRows, per_row));
        for (int64_t row = 0; row < kRows; ++row) {
          const float* of_row = logits.data() + row * experts;
          double all = 0;
          double some = 0;
          for (int64_t e = 0; e < experts; ++e) all += std::exp(static_cast<double>(of_row[e]));
          const auto begin = static_cast<size_t>(row * per_row);
          const std::span mine = std::span(chosen).subspan(begin, static_cast<size_t>(per_row));
          for (int32_t e : mine) some += std::exp(static_cast<double>(of_row[e]));
          const std::set<int32_t> distinct(mine.begin(), mine.end());
          ASSERT_EQ(std::ssize(distinct), per_row);
          for (size_t j = 0; j < mine.size(); ++j) {
            const double value = static_cast<double>(of_row[mine[j]]);
            EXPECT_NEAR(weights[begin + j], std::exp(value) / (kind == kOfAll ? all : some), 1e-6);
            if (j > 0) {
              EXPECT_GE(of_row[mine[j - 1]], of_row[mine[j]]);
            }
          }
          for (int64_t e = 0; e < experts; ++e) {
            EXPECT_TRUE(of_row[e] <= of_row[mine.back()] ||
                        distinct.contains(static_cast<int32_t>(e)));
          }
        }
      }
    }
  }
}

TEST_F(ExpertsTest, LogitsThatAreNoNumbersChooseExpertsThatExist) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Floats logits = {nan, nan, nan, nan, 1, nan, INFINITY, 2};
  std::vector<int32_t> chosen(4);
  Floats weights(4);
  ops_->choose_experts(view_of(logits, 2, 4), {2, kOfAll}, chosen, view_of(weights, 2, 2));
  for (int32_t expert : chosen) EXPECT_TRUE(expert >= 0 && expert < 4);
  for (float weight : weights) EXPECT_FALSE(std::isfinite(weight));
}

TEST_F(ExpertsTest, GathersRowsAndAddsThemWeighted) {
  Floats in = random_floats(random_, 6 * 10);
  const std::vector<int32_t> rows = {5, 0, 0, 3};
  Floats gathered(4 * 10);
  ops_->gather_rows(view_of(in, 6, 10), rows, view_of(gathered, 4, 10));
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t e = 0; e < 10; ++e)
      EXPECT_EQ(gathered[10 * i + e], in[10 * static_cast<size_t>(rows[i]) + e]);
  }
  Floats weights = {0.25f, 0.75f, 1.0f, -2.0f};
  const std::vector<int32_t> places = {1, 3, 2, 0};
  Floats out(2 * 10, 1.0f);
  ops_->add_weighted_rows(view_of(gathered, 4, 10), places, view_of(weights, 2, 2),
                          view_of(out, 2, 10));
  for (size_t e = 0; e < 10; ++e) {
    EXPECT_NEAR(out[e], 1 + 0.25f * gathered[10 + e] + 0.75f * gathered[30 + e], 1e-6);
    EXPECT_NEAR(out[10 + e], 1 + gathered[20 + e] - 2 * gathered[e], 1e-6);
  }
}

TEST_F(ExpertsTest, GatesRows) {
  Floats gates = {0, 2, -100};
  Floats rows(3 * 5, 3.0f);
  ops_->gate_rows(view_of(gates, 3, 1), view_of(rows, 3, 5));
  for (size_t e = 0; e < 5; ++e) {
    EXPECT_NEAR(rows[e], 1.5f, 1e-6);
    EXPECT_NEAR(rows[5 + e], 3 / (1 + std::exp(-2.0f)), 1e-6);
    EXPECT_NEAR(rows[10 + e], 0, 1e-6);
  }
}

}  // namespace
}  // namespace droidspeak::cpu
