#include "profiler/profiler.h"

#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "profiler/evaluation.h"
#include "profiler/plan_measurement.h"
#include "profiler/profiler_fixture.h"
#include "profiler/shape_choice.h"
#include "sharing/look.h"

namespace droidspeak {
namespace {

using testing::HasSubstr;

class ProfilerTest : public ProfilerFixture {
 protected:
  // Through the path that serves requests, every plan by itself.
  PlanEvaluation evaluate(const ModelPair& models,
                          const ReusePlan& plan,
                          Metric metric,
                          int32_t rows = 4) {
    SteadyClock clock;
    StoreOptions store_options;
    store_options.host_bytes = size_t{256} << 20;
    CacheStore store(store_options, clock);
    PromptRunner runner(*ops_, *kv_, store);
    EvaluationOptions evaluation{models.sender,
                                 models.receiver,
                                 {{plan, nullptr, "plan", default_look_layer(kLayers)}},
                                 metric,
                                 kAnswerTokens};
    return evaluate_plans(runner, *tokenizer_, prompts(rows), evaluation).front();
  }
};

// The slow obvious way: every plan by itself through PromptRunner, from the sender's stored cache.
TEST_F(ProfilerTest, HeatMapEqualsPartialPrefillsOfTheRunner) {
  ModelPair models = pair("base", "alpha");
  PlanBook book = run_profile(models, *tokenizer_, options("book.json"));
  for (const HeatCell& cell : book.heat_map) {
    if (cell.translated) continue;
    PlanEvaluation result = evaluate(models, {0, cell.b, cell.c}, Metric::kF1);
    EXPECT_NEAR(cell.kl, result.kl, 1e-5 + 1e-3 * result.kl) << cell.b << "," << cell.c;
    EXPECT_NEAR(cell.agreement, result.agreement, 1e-9) << cell.b << "," << cell.c;
  }
}

TEST_F(ProfilerTest, ScoresOfTheFrontierEqualGenerationByTheRunner) {
  ModelPair models = pair("base", "alpha");
  ProfileOptions profile = options("book.json");
  profile.metric = Metric::kEditSimilarity;
  PlanBook book = run_profile(models, *tokenizer_, profile);
  for (const PlanEntry& entry : book.frontier) {
    if (entry.translated || !entry.quality.score) continue;
    PlanEvaluation result = evaluate(models, entry.plan, Metric::kEditSimilarity);
    EXPECT_NEAR(*entry.quality.score, *result.score, 1e-6);
  }
}

// Answers of one token, of several, of more than an answer may have, and the shorter of two.
const std::vector<std::string> kGold = {R"(["7"])", R"(["12 g"])", R"(["nine years old"])",
                                        R"(["thirteen", "13"])"};

TEST_F(ProfilerTest, GoldProbabilitiesEqualTheLikelihoodsOfTheRunner) {
  std::string text;
  for (int i = 0; i < 4; ++i) text += item_row(i, kGold[static_cast<size_t>(i)]);
  write_file_atomically(data_, text);
  ModelPair models = pair("base", "alpha");
  const std::vector<QaPrompt> all = prompts();
  TrialTools tools(models);
  MeasurementOptions measuring{
      *tokenizer_, Metric::kF1, {kAnswerTokens, tokenizer_->end_of_turn_ids}};
  const std::vector<ReusePlan> plans = {
      ReusePlan::reuse_all(), {0, 2, 4}, {0, 2, 6}, {0, 0, 4}, {0, 2, 4, 250}};
  ProfileRecord record;
  for (size_t i = 0; i < all.size(); ++i) {
    PlanMeasurement measured(tools, all[i], measuring);
    measured.context().read_both(std::vector<int32_t>{2}, {});
    record.references.push_back(measured.answer_in_full());
    measured.context().recompute({2, 6}, nullptr);
    TriedPlan looked_at{plans.back(), false};
    measured.trial().look(looked_at, measured.trial().scout(looked_at));
    std::vector<TriedPlan> tried;
    for (const ReusePlan& plan : plans) tried.push_back({plan, false});
    measured.compare(tried);
    measured.add_to(record.plans, static_cast<int32_t>(i));
  }
  PlanEvaluation full = evaluate(models, ReusePlan::full(kLayers), Metric::kF1);
  for (size_t i = 0; i < all.size(); ++i) {
    const double expected = std::exp(-*full.rows[i].gold_nll);
    EXPECT_NEAR(*record.references[i].gold_probability, expected, 1e-5 * expected) << i;
  }
  for (const ReusePlan& plan : plans) {
    const std::vector<double>& found = record.plans.at({plan, false}).gold_probability;
    PlanEvaluation slow = evaluate(models, plan, Metric::kF1);
    ASSERT_EQ(found.size(), all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      const double expected = std::exp(-*slow.rows[i].gold_nll);
      EXPECT_NEAR(found[i], expected, 1e-4 * expected) << plan.to_string(kLayers) << " on " << i;
      EXPECT_NE(found[i], *record.references[i].gold_probability);
    }
  }
}

TEST_F(ProfilerTest, TheBookSaysWhatTheKnownAnswersLost) {
  ModelPair models = pair("base", "alpha");
  PlanBook book = run_profile(models, *tokenizer_, options("book.json"));
  PlanEvaluation full = evaluate(models, ReusePlan::full(kLayers), Metric::kF1);
  std::vector<double> all;
  for (const RowEvaluation& row : full.rows) all.push_back(std::exp(-*row.gold_nll));
  ASSERT_TRUE(book.full_gold_probability);
  EXPECT_NEAR(*book.full_gold_probability, mean_of(all), 1e-5 * mean_of(all));
  int num_checked = 0;
  for (const PlanEntry& entry : book.frontier) {
    ASSERT_TRUE(entry.quality.gold_lost && entry.quality.gold_lost_error);
    if (entry.translated) continue;
    PlanEvaluation slow = evaluate(models, entry.plan, Metric::kF1);
    std::vector<double> lost;
    for (size_t i = 0; i < all.size(); ++i)
      lost.push_back(all[i] - std::exp(-*slow.rows[i].gold_nll));
    EXPECT_NEAR(*entry.quality.gold_lost, mean_of(lost) / mean_of(all), 1e-4);
    EXPECT_NEAR(*entry.quality.gold_lost_error, deviation_of(lost) / 2 / mean_of(all), 1e-4);
    ++num_checked;
  }
  EXPECT_GT(num_checked, 0);
}

// Rows behind those that are measured and fitted on; the book's figures are theirs alone.
TEST_F(ProfilerTest, FurtherRowsConfirmTheFrontier) {
  std::string text;
  for (int i = 0; i < 12; ++i) text += item_row(i);
  write_file_atomically(data_, text);
  ProfileOptions profile = options("book.json");
  profile.fit_contexts = 6;
  profile.confirm_contexts = 5;
  ModelPair models = pair("base", "alpha");
  PlanBook book = run_profile(models, *tokenizer_, profile);
  EXPECT_EQ(book.num_contexts, 4);
  EXPECT_EQ(book.num_confirming, 5);
  EXPECT_EQ(load_plan_book(profile.out).num_confirming, 5);

  std::string further;
  for (int i = 6; i < 11; ++i) further += item_row(i);
  write_file_atomically(data_, further);
  PlanEvaluation full = evaluate(models, ReusePlan::full(kLayers), Metric::kF1, 5);
  ASSERT_EQ(full.rows.size(), 5U);
  EXPECT_NEAR(*book.full_score, *full.score, 1e-9);
  int num_checked = 0;
  for (const PlanEntry& entry : book.frontier) {
    if (entry.translated) continue;
    PlanEvaluation slow = evaluate(models, entry.plan, Metric::kF1, 5);
    EXPECT_NEAR(entry.quality.kl, slow.kl, 1e-5 + 1e-3 * slow.kl);
    EXPECT_NEAR(*entry.quality.score, *slow.score, 1e-9);
    double lost = 0;
    double all = 0;
    for (size_t i = 0; i < 5; ++i) {
      all += std::exp(-*full.rows[i].gold_nll);
      lost += std::exp(-*full.rows[i].gold_nll) - std::exp(-*slow.rows[i].gold_nll);
    }
    EXPECT_NEAR(*entry.quality.gold_lost, lost / all, 1e-4);
    ++num_checked;
  }
  EXPECT_GT(num_checked, 0);
}

TEST_F(ProfilerTest, RowsOfAnotherFileConfirmAsWell) {
  ProfileOptions profile = options("book.json");
  profile.confirm_data = folder_.path() / "further.jsonl";
  std::string text;
  for (int i = 6; i < 11; ++i) text += item_row(i);
  write_file_atomically(profile.confirm_data, text);
  PlanBook book = run_profile(pair("base", "alpha"), *tokenizer_, profile);
  EXPECT_EQ(book.num_confirming, 5);
}

TEST_F(ProfilerTest, RowsThatHaveChosenPlansConfirmNothing) {
  ProfileOptions profile = options("book.json");
  profile.confirm_data = data_;
  std::string said;
  profile.warn = [&](const std::string& line) { said += line + "\n"; };
  PlanBook book = run_profile(pair("base", "alpha"), *tokenizer_, profile);
  EXPECT_EQ(book.num_confirming, 0);
  EXPECT_THAT(said, HasSubstr("rows.jsonl: skipped rows: 5 whose prompt occurred before"));
  EXPECT_THAT(said, HasSubstr("0 rows are left to confirm plans on, expected at least 4"));
}

// Twice the same says nothing more, and what chose a plan does not confirm it.
TEST_F(ProfilerTest, RowsThatOccurAgainAreLeftOutOfEveryPart) {
  write_rows(data_, {0, 1, 2, 3, 0, 1, 2, 3, 4, 4, 5, 0, 1, 2, 3, 0, 1, 2, 3});
  ProfileOptions profile = options("book.json");
  std::string said;
  profile.warn = [&](const std::string& line) { said += line + "\n"; };
  PlanBook repeated = run_profile(pair("base", "alpha"), *tokenizer_, profile);
  EXPECT_EQ(repeated.num_contexts, 4);
  EXPECT_EQ(repeated.num_confirming, 0);
  EXPECT_THAT(said, HasSubstr("rows.jsonl: skipped rows: 13 whose prompt occurred before"));
  EXPECT_THAT(said, HasSubstr("0 rows are left to confirm plans on, expected at least 4"));
  write_rows(data_, {0, 1, 2, 3, 4, 5});
  expect_same_measurements(repeated, run_profile(pair("base", "alpha"), *tokenizer_, profile));
}

TEST_F(ProfilerTest, OneRowManyTimesConfirmsNothing) {
  ProfileOptions profile = options("book.json");
  profile.confirm_data = folder_.path() / "further.jsonl";
  write_rows(profile.confirm_data, std::vector<int>(20, 7));
  std::string said;
  profile.warn = [&](const std::string& line) { said += line + "\n"; };
  PlanBook book = run_profile(pair("base", "alpha"), *tokenizer_, profile);
  EXPECT_EQ(book.num_confirming, 0);
  EXPECT_THAT(said, HasSubstr("further.jsonl: skipped rows: 19 whose prompt occurred before"));
  EXPECT_THAT(said, HasSubstr("1 rows are left to confirm plans on, expected at least 4"));
}

TEST_F(ProfilerTest, TooFewFurtherRowsConfirmNothingAndThatIsSaid) {
  std::string text;
  for (int i = 0; i < 7; ++i) text += item_row(i);
  write_file_atomically(data_, text);
  ProfileOptions profile = options("book.json");
  profile.fit_contexts = 0;
  std::string said;
  profile.warn = [&](const std::string& line) { said += line + "\n"; };
  PlanBook book = run_profile(pair("base", "alpha"), *tokenizer_, profile);
  EXPECT_EQ(book.num_confirming, 0);
  EXPECT_THAT(said, HasSubstr("3 rows are left to confirm plans on, expected at least 4"));
  profile.confirm_contexts = 0;
  said.clear();
  run_profile(pair("base", "alpha"), *tokenizer_, profile);
  EXPECT_EQ(said, "");
}

TEST_F(ProfilerTest, RowsWithoutAKnownAnswerSayNothingOfIt) {
  std::string text;
  for (int i = 0; i < 4; ++i) text += item_row(i, i < 3 ? "[]" : "");
  write_file_atomically(data_, text);
  PlanBook book = run_profile(pair("base", "alpha"), *tokenizer_, options("book.json"));
  EXPECT_FALSE(book.full_gold_probability) << "of one row alone";
  for (const PlanEntry& entry : book.frontier) {
    EXPECT_FALSE(entry.quality.gold_lost);
    EXPECT_NEAR(entry.quality_index, 1 - std::pow(entry.quality.kl / 1.08, 1.5), 1e-12);
  }
}

// A score of 0 would say that full prefill and every plan had answered wrong.
TEST_F(ProfilerTest, RowsWithoutAKnownAnswerHaveNoScore) {
  std::string text;
  for (int i = 0; i < 6; ++i) text += item_row(i, i % 2 == 0 ? "[]" : R"(["is Number of item"])");
  write_file_atomically(data_, text);
  ProfileOptions profile = options("book.json");
  profile.contexts = 6;
  profile.metric = Metric::kEditSimilarity;
  ModelPair models = pair("base", "alpha");
  PlanBook book = run_profile(models, *tokenizer_, profile);
  PlanEvaluation full = evaluate(models, ReusePlan::full(kLayers), profile.metric, 6);
  EXPECT_FALSE(full.rows[0].score);
  EXPECT_GT(*full.rows[1].score, 0);
  const double mean = (*full.rows[1].score + *full.rows[3].score + *full.rows[5].score) / 3;
  EXPECT_NEAR(*full.score, mean, 1e-9);
  EXPECT_NEAR(*book.full_score, mean, 1e-9);
  int num_checked = 0;
  for (const PlanEntry& entry : book.frontier) {
    if (entry.translated || !entry.quality.score) continue;
    PlanEvaluation slow = evaluate(models, entry.plan, profile.metric, 6);
    EXPECT_NEAR(entry.quality.kl, slow.kl, 1e-5 + 1e-3 * slow.kl) << "of all rows";
    EXPECT_NEAR(*entry.quality.score, *slow.score, 1e-9);
    EXPECT_NEAR(*entry.quality.score_low, slow.difference_interval.low, 1e-9);
    EXPECT_NEAR(*entry.quality.score_high, slow.difference_interval.high, 1e-9);
    ++num_checked;
  }
  EXPECT_GT(num_checked, 0);
}

TEST_F(ProfilerTest, WithoutAnyKnownAnswerABookHasNoScore) {
  std::string text;
  for (int i = 0; i < 4; ++i) text += item_row(i, "[]");
  write_file_atomically(data_, text);
  ProfileOptions profile = options("book.json");
  run_profile(pair("base", "alpha"), *tokenizer_, profile);
  const PlanBook book = load_plan_book(profile.out);
  EXPECT_FALSE(book.full_score);
  for (const PlanEntry& entry : book.frontier) EXPECT_FALSE(entry.quality.score);
  PlanEvaluation slow = evaluate(pair("base", "alpha"), ReusePlan::reuse_all(), Metric::kF1);
  EXPECT_FALSE(slow.score);
  EXPECT_GT(slow.kl, 0);
}

TEST_F(ProfilerTest, KnownAnswersOfSomeRowsAreTakenInPairs) {
  std::string text;
  for (int i = 0; i < 4; ++i) text += item_row(i, i % 2 == 0 ? "[]" : "");
  write_file_atomically(data_, text);
  ModelPair models = pair("base", "alpha");
  PlanBook book = run_profile(models, *tokenizer_, options("book.json"));
  PlanEvaluation full = evaluate(models, ReusePlan::full(kLayers), Metric::kF1);
  const double first = std::exp(-*full.rows[1].gold_nll);
  const double second = std::exp(-*full.rows[3].gold_nll);
  ASSERT_TRUE(book.full_gold_probability);
  EXPECT_NEAR(*book.full_gold_probability, (first + second) / 2, 1e-5);
  for (const PlanEntry& entry : book.frontier) EXPECT_TRUE(entry.quality.gold_lost);
}

// Some, many and all tokens, on plain reuse and on a block.
TEST_F(ProfilerTest, LookedAtTokensEqualPartialPrefillsOfTheRunner) {
  ModelPair models = pair("base", "alpha");
  TrialTools tools(models);
  const std::vector<QaPrompt> all = prompts();
  for (ReusePlan plan :
       {ReusePlan{0, 0, 0, 100}, ReusePlan{0, 2, 4, 250}, ReusePlan{0, 2, 4, 1000}}) {
    double kl = 0;
    for (const QaPrompt& prompt : all) {
      PromptTrial trial(tools, prompt);
      trial.context().read_both(std::vector<int32_t>{2}, {});
      trial.answer_in_full({kAnswerTokens, tokenizer_->end_of_turn_ids});
      if (plan.needs_layer_input()) trial.context().recompute({2, 4}, nullptr);
      TriedPlan tried{plan, false};
      trial.look(tried, trial.scout(tried));
      std::vector<ContextMixture> mixtures{trial.context().mixture(tried)};
      kl += trial.compare(mixtures).front().kl / static_cast<double>(all.size());
    }
    PlanEvaluation result = evaluate(models, plan, Metric::kF1);
    EXPECT_NEAR(kl, result.kl, 1e-5 + 1e-3 * result.kl) << plan.to_string(kLayers);
    if (plan.look_permille == 1000) {
      EXPECT_LT(kl, 1e-6) << "everything was read";
    } else {
      EXPECT_GT(kl, 1e-6);
    }
  }
}

TEST_F(ProfilerTest, SenderThatIsTheReceiverDivergesNowhere) {
  run_profile(pair("alpha", "alpha"), *tokenizer_, options("book.json"));
  const PlanBook book = load_plan_book(folder_.path() / "book.json");
  EXPECT_TRUE(book.maps_file.empty()) << "no plan of the frontier needs them";
  EXPECT_TRUE(std::ranges::any_of(book.heat_map, &HeatCell::translated)) << "and yet it was tried";
  for (const HeatCell& cell : book.heat_map) {
    EXPECT_LT(cell.kl, 1e-6);
    EXPECT_EQ(cell.agreement, 1);
  }
  for (const LayerSensitivity& layer : book.sensitivity) EXPECT_LT(layer.kl, 1e-6);
  ASSERT_FALSE(book.frontier.empty());
  EXPECT_EQ(book.cheapest(0.99)->plan, ReusePlan::reuse_all());
}

TEST_F(ProfilerTest, WritesABookThatLoadsWithMapsAndPlots) {
  ProfileOptions profile = options("book.json");
  PlanBook book = run_profile(pair("base", "alpha"), *tokenizer_, profile);
  PlanBook loaded = load_plan_book(profile.out);
  expect_same_measurements(book, loaded);
  EXPECT_EQ(loaded.sender, "base");
  EXPECT_EQ(loaded.receiver, "alpha");
  EXPECT_EQ(loaded.sender_formula, family_->get("base")->transformer->formula());
  EXPECT_EQ(loaded.receiver_formula, family_->get("alpha")->transformer->formula());
  EXPECT_EQ(loaded.num_contexts, 4);
  EXPECT_EQ(loaded.metric, "f1");
  EXPECT_EQ(loaded.sensitivity.size(), static_cast<size_t>(kLayers));
  EXPECT_FALSE(std::filesystem::exists(partial_path(profile.out)));
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "book.heatmap.svg"));
  if (!loaded.maps_file.empty()) {
    TranslationMaps maps = load_translation(
        loaded.maps_file, kLayers, family_->config().kv_columns(), family_->config().d_model);
    EXPECT_EQ(maps.kv.size(), static_cast<size_t>(kLayers));
    const std::string bytes = read_file(loaded.maps_file);
    EXPECT_EQ(loaded.maps_digest, sha256(std::as_bytes(std::span(bytes))));
  }
}

TEST_F(ProfilerTest, WorkIsSharedBetweenPlans) {
  PlanBook book = run_profile(pair("base", "alpha"), *tokenizer_, options("book.json"));
  // Both read the context twice at most, six layers in steps of two are recomputed from 2 and 4.
  double raw = 2 + (4.0 + 2.0) / kLayers;
  double translated = 1 + (2.0 + 2.0) / kLayers;
  double shapes = (1 + ShapeChoice::kRecomputed * 2.0 / kLayers) / 4;
  double refined = 1 + 1.0;
  // The sender's reading, and all shares on plain reuse and on four blocks, raw and translated.
  double looks = 1 + 6 * 0.6 + 4 * 2.0 / kLayers;
  // Both read the fifth row, which is not measured.
  double fit = 2.0 / 4;
  EXPECT_LE(book.prefill_equivalents, raw + translated + shapes + refined + looks + 1.1 * fit);
  EXPECT_GE(book.prefill_equivalents, raw + translated + 1 + 2 * 0.58 + 0.9 * fit);
}

TEST_F(ProfilerTest, MapsAreFittedOnThreeRowsForEachOneMeasured) {
  ProfileOptions profile;
  profile.contexts = 60;
  EXPECT_EQ(profile.most_fit_rows(), 120) << "beside the 60 that are measured";
  profile.fit_contexts = 240;
  EXPECT_EQ(profile.most_fit_rows(), 180);
  for (int32_t no_more_than_measured : {60, 1, 0}) {
    profile.fit_contexts = no_more_than_measured;
    EXPECT_EQ(profile.most_fit_rows(), 0);
  }
}

// Of seven rows two are measured; the next four serve the fit, and the seventh is not read.
TEST_F(ProfilerTest, TheDefaultReadsRowsApartFromTheMeasuredOnes) {
  std::string text;
  for (int i = 0; i < 7; ++i) text += item_row(i);
  write_file_atomically(data_, text);
  ProfileOptions profile = options("book.json");
  profile.contexts = 2;
  profile.confirm_contexts = 0;
  auto work = [&](int32_t fit_contexts) {
    profile.fit_contexts = fit_contexts;
    return run_profile(pair("base", "alpha"), *tokenizer_, profile).prefill_equivalents;
  };
  EXPECT_EQ(work(ProfileOptions::kByContexts), work(6));
  EXPECT_NEAR(work(6), work(2) + 2 * 4 / 2.0, 0.4);
}

TEST_F(ProfilerTest, ExtraFitContextsAreReadByBothModels) {
  ProfileOptions profile = options("book.json");
  profile.contexts = 3;
  profile.fit_contexts = 5;
  PlanBook book = run_profile(pair("base", "alpha"), *tokenizer_, profile);
  EXPECT_EQ(book.num_contexts, 3);
}

TEST_F(ProfilerTest, RowsOfAnotherFileServeTheFitAlone) {
  std::string text;
  for (int i = 10; i < 14; ++i) text += item_row(i);
  std::filesystem::path fit_data = folder_.path() / "fit.jsonl";
  write_file_atomically(fit_data, text);
  ProfileOptions profile = options("book.json");
  profile.fit_contexts = 4;
  PlanBook alone = run_profile(pair("base", "alpha"), *tokenizer_, profile);
  profile.fit_contexts = 8;
  profile.fit_data = fit_data;
  PlanBook book = run_profile(pair("base", "alpha"), *tokenizer_, profile);
  EXPECT_EQ(book.num_contexts, 4);
  EXPECT_NEAR(book.prefill_equivalents, alone.prefill_equivalents + 2, 0.2);
  ASSERT_EQ(book.heat_map.size(), alone.heat_map.size());
  for (size_t i = 0; i < book.heat_map.size(); ++i) {
    if (book.heat_map[i].translated) continue;
    EXPECT_EQ(book.heat_map[i].kl, alone.heat_map[i].kl);
  }
}

// Plans are tried side by side where memory allows, and a few at a time where it does not.
TEST_F(ProfilerTest, ResultsDoNotDependOnMemory) {
  PlanBook roomy = run_profile(pair("base", "alpha"), *tokenizer_, options("roomy.json"));
  KvLayout layout = family_->config().kv_layout(DType::kF32);
  int32_t blocks = 0;
  for (const QaPrompt& prompt : prompts())
    blocks = std::max(blocks, blocks_for(static_cast<int32_t>(prompt.tokens.size())));
  kv_ = std::make_unique<KvCache>(*device_, layout,
                                  layout.block_bytes() * static_cast<size_t>(4 * blocks + 36));
  PlanBook tight = run_profile(pair("base", "alpha"), *tokenizer_, options("tight.json"));
  expect_same_measurements(roomy, tight);
}

TEST_F(ProfilerTest, TooLittleMemoryIsSaidBeforeAnythingIsWritten) {
  kv_ = std::make_unique<KvCache>(*device_, family_->config().kv_layout(DType::kF32),
                                  family_->config().kv_layout(DType::kF32).block_bytes() * 4);
  ProfileOptions profile = options("book.json");
  try {
    run_profile(pair("base", "alpha"), *tokenizer_, profile);
    FAIL() << "four blocks are not enough";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), ErrorCode::kExhausted);
    EXPECT_THAT(failure.what(), HasSubstr("--kv-memory"));
  }
  EXPECT_FALSE(std::filesystem::exists(profile.out));
}

TEST_F(ProfilerTest, EvaluationOfFullPrefillAgreesWithItself) {
  PlanEvaluation result = evaluate(pair("base", "alpha"), ReusePlan::full(kLayers), Metric::kF1);
  EXPECT_LT(result.kl, 1e-9);
  EXPECT_EQ(result.agreement, 1);
  EXPECT_EQ(result.difference_interval.low, 0);
  EXPECT_GT(result.ttft_ms, 0);
}

}  // namespace
}  // namespace droidspeak
