#include "load_report.h"

#include <cmath>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace droidspeak {
namespace {

LoadFigures arm_with(std::string name, std::vector<double> scores, double throughput) {
  LoadFigures figures;
  figures.arm = std::move(name);
  figures.throughput = throughput;
  figures.num_answers = static_cast<int32_t>(scores.size());
  figures.num_good = figures.num_answers;
  figures.scores = std::move(scores);
  return figures;
}

TEST(CompareScores, IsTheMeanOfDifferencesAndItsStandardError) {
  const LoadFigures off = arm_with("off", {0, 1, 0.5, 1}, 1);
  const auto difference = compare_scores(arm_with("droidspeak", {0.5, 1, 0.5, 0}, 2), off);
  ASSERT_TRUE(difference);
  EXPECT_DOUBLE_EQ(difference->mean, -0.125);
  // Deviations 0.625, 0.125, 0.125, -0.875.
  EXPECT_NEAR(difference->standard_error, std::sqrt((0.390625 + 2 * 0.015625 + 0.765625) / 3 / 4),
              1e-12);
  EXPECT_EQ(compare_scores(off, off)->mean, 0);
  EXPECT_EQ(compare_scores(off, off)->standard_error, 0);
}

TEST(CompareScores, NeedsAllAnswersOfBoth) {
  const LoadFigures off = arm_with("off", {0, 1, 0.5}, 1);
  EXPECT_FALSE(compare_scores(arm_with("fewer", {0, 1}, 1), off));
  LoadFigures failed = off;
  failed.num_failed = 1;
  EXPECT_FALSE(compare_scores(failed, off));
  LoadFigures ended = off;
  ended.was_ended_early = true;
  EXPECT_FALSE(compare_scores(off, ended));
}

TEST(LoadReport, TellsTheDifferenceToSharingOff) {
  LoadReport report;
  report.rows = {arm_with("off", {0, 1}, 1), arm_with("droidspeak", {0.5, 1}, 3)};
  const nlohmann::json json = to_json(report);
  EXPECT_EQ(json["best_throughput"]["droidspeak"], 3);
  EXPECT_EQ(json["f1_to_off"]["droidspeak"]["mean"], 0.25);
  EXPECT_FALSE(json["f1_to_off"].contains("off"));
}

TEST(LoadReport, AnswersToQuestionsOfUnknownAnswerHaveNoScore) {
  TraceResult result;
  result.answers.resize(3);
  for (LoadResult& answer : result.answers) {
    answer.status = 200;
    answer.is_complete = true;
    answer.text = "seven";
  }
  result.references = {{"seven"}, {}, {"two"}};
  EXPECT_EQ(summarize("off", 1, result, 1000).f1, 0.5);
  result.references = {{}, {}, {}};
  LoadReport report;
  report.rows = {summarize("off", 1, result, 1000)};
  EXPECT_TRUE(to_json(report).at("rows").at(0).at("f1").is_null());
}

TEST(LoadReport, RowsNameTheirPercentiles) {
  LoadReport report;
  report.rows = {arm_with("off", {0}, 1)};
  report.rows[0].ttft_ms = {1, 2, 3};
  report.rows[0].tbt_ms = {4, 5, 6};
  report.rows[0].e2e_ms = {7, 8, 9};
  const nlohmann::json row = to_json(report).at("rows").at(0);
  EXPECT_EQ(row["arm"], "off");
  EXPECT_EQ(row["ttft_ms_p50"], 1);
  EXPECT_EQ(row["ttft_ms_p95"], 2);
  EXPECT_EQ(row["tbt_ms_p50"], 4);
  EXPECT_EQ(row["e2e_ms_p50"], 7);
  EXPECT_EQ(row["e2e_ms_p99"], 9);
}

}  // namespace
}  // namespace droidspeak
