#include "model/expert_groups.h"

#include <random>

#include <gtest/gtest.h>

namespace droidspeak {
namespace {

TEST(ExpertGroups, OrderChoicesByExpertAndRow) {
  ExpertGroups groups;
  group_by_expert(std::vector<int32_t>{2, 0, 2, 3, 0, 2}, 2, 5, groups);
  EXPECT_EQ(groups.begins, (std::vector<int64_t>{0, 2, 2, 5, 6, 6}));
  EXPECT_EQ(groups.rows, (std::vector<int32_t>{0, 2, 0, 1, 2, 1}));
  EXPECT_EQ(groups.places, (std::vector<int32_t>{2, 0, 3, 5, 1, 4}));
}

TEST(ExpertGroups, HoldEveryChoiceOnce) {
  std::mt19937 random(3);
  ExpertGroups groups;
  for (int32_t per_row : {1, 2, 8}) {
    std::vector<int32_t> experts(static_cast<size_t>(50 * per_row));
    for (int32_t& expert : experts) expert = static_cast<int32_t>(random() % 17);
    group_by_expert(experts, per_row, 17, groups);
    ASSERT_EQ(groups.begins.size(), 18u);
    for (size_t i = 0; i < experts.size(); ++i) {
      const auto place = static_cast<size_t>(groups.places[i]);
      const auto expert = static_cast<size_t>(experts[i]);
      EXPECT_EQ(groups.rows[place], static_cast<int32_t>(i) / per_row);
      EXPECT_GE(std::ssize(groups.rows), groups.begins[expert + 1]);
      EXPECT_TRUE(groups.places[i] >= groups.begins[expert] &&
                  groups.places[i] < groups.begins[expert + 1]);
    }
  }
}

TEST(ExpertGroups, MayBeEmpty) {
  ExpertGroups groups;
  group_by_expert({}, 2, 3, groups);
  EXPECT_EQ(groups.begins, (std::vector<int64_t>{0, 0, 0, 0}));
  EXPECT_TRUE(groups.rows.empty());
}

}  // namespace
}  // namespace droidspeak
