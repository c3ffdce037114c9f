#include "profiler/metrics.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace droidspeak {
namespace {

double score(Metric metric, std::string_view answer, std::vector<std::string> references) {
  return score_answer(metric, answer, references).value();
}

TEST(Metrics, F1CountsSharedWordsAfterNormalisation) {
  EXPECT_DOUBLE_EQ(score(Metric::kF1, "The Eiffel Tower.", {"eiffel tower"}), 1);
  // Two of three words on one side, two of two on the other: 2 * (2/3) / (2/3 + 1).
  EXPECT_DOUBLE_EQ(score(Metric::kF1, "big eiffel tower", {"Eiffel Tower"}), 0.8);
  EXPECT_DOUBLE_EQ(score(Metric::kF1, "paris paris", {"paris"}), 2.0 / 3);
  EXPECT_DOUBLE_EQ(score(Metric::kF1, "london", {"paris"}), 0);
  EXPECT_DOUBLE_EQ(score(Metric::kF1, "", {"paris"}), 0);
}

TEST(Metrics, BestReferenceCounts) {
  EXPECT_DOUBLE_EQ(score(Metric::kF1, "paris", {"london", "paris"}), 1);
}

TEST(Metrics, NothingToCompareWithIsNoScore) {
  EXPECT_EQ(score_answer(Metric::kF1, "paris", {}), std::nullopt);
  EXPECT_EQ(score_answer(Metric::kNone, "paris", std::vector<std::string>{"paris"}), std::nullopt);
  EXPECT_EQ(mean_if_any({}), std::nullopt);
}

TEST(Metrics, ExactMatchIgnoresCasePunctuationAndArticles) {
  EXPECT_DOUBLE_EQ(score(Metric::kExactMatch, "A Tale!", {"the tale"}), 1);
  EXPECT_DOUBLE_EQ(score(Metric::kExactMatch, "tales", {"tale"}), 0);
}

TEST(Metrics, RougeLUsesTheLongestCommonSubsequence) {
  // Common: "the cat sat" (3) of 4 and 5 words: p 3/4, r 3/5.
  EXPECT_DOUBLE_EQ(score(Metric::kRougeL, "The cat quietly sat", {"yesterday the cat also sat"}),
                   2.0 * 0.75 * 0.6 / 1.35);
  EXPECT_DOUBLE_EQ(score(Metric::kRougeL, "", {"word"}), 0);
}

TEST(Metrics, EditSimilarityIsOneLessTheDistance) {
  EXPECT_DOUBLE_EQ(score(Metric::kEditSimilarity, "kitten", {"sitting"}), 1 - 3.0 / 7);
  EXPECT_DOUBLE_EQ(score(Metric::kEditSimilarity, "same", {"same"}), 1);
}

TEST(Metrics, FinalNumberReadsTheMarkedOrTheLastNumber) {
  EXPECT_DOUBLE_EQ(score(Metric::kFinalNumber, "3 + 4 = 7\n#### 7", {"so\n#### 7"}), 1);
  EXPECT_DOUBLE_EQ(score(Metric::kFinalNumber, "that makes 1,234 in all", {"#### 1234"}), 1);
  EXPECT_DOUBLE_EQ(score(Metric::kFinalNumber, "#### -2.5", {"#### 2.5"}), 0);
  EXPECT_DOUBLE_EQ(score(Metric::kFinalNumber, "no number", {"#### 3"}), 0);
}

TEST(Metrics, NamesRoundTripAndUnknownOnesAreRefused) {
  for (const char* name :
       {"f1", "exact_match", "rouge_l", "edit_similarity", "final_number", "none"}) {
    EXPECT_EQ(name_of(parse_metric(name)), name);
  }
  EXPECT_THROW(parse_metric("bleu"), Failure);
}

TEST(Bootstrap, IntervalHoldsTheMeanAndIsDeterministic) {
  std::vector<double> values;
  for (int i = 0; i < 100; ++i) values.push_back(i % 10);
  Interval interval = bootstrap_mean(values);
  EXPECT_LT(interval.low, 4.5);
  EXPECT_GT(interval.high, 4.5);
  // Standard error 0.287: about 1.96 of them on either side.
  EXPECT_NEAR(interval.high - interval.low, 2 * 1.96 * 0.287, 0.2);
  EXPECT_EQ(bootstrap_mean(values).low, interval.low);
}

TEST(Bootstrap, PairedDifferenceOfShiftedValuesIsExact) {
  std::vector<double> baseline{0.1, 0.9, 0.4, 0.7};
  std::vector<double> values{0.2, 1.0, 0.5, 0.8};
  Interval interval = bootstrap_difference(values, baseline);
  EXPECT_NEAR(interval.low, 0.1, 1e-12);
  EXPECT_NEAR(interval.high, 0.1, 1e-12);
}

TEST(Statistics, MedianAndDeviation) {
  EXPECT_DOUBLE_EQ(median_of({3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median_of({4, 1, 2, 3}), 2.5);
  std::vector<double> values{1, 2, 3, 4};
  EXPECT_NEAR(deviation_of(values), 1.2909944, 1e-6);
}

}  // namespace
}  // namespace droidspeak
