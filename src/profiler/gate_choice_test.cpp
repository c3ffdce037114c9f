#include "profiler/gate_choice.h"

#include <gtest/gtest.h>

#include "profiler/profiler_fixture.h"
#include "profiler/prompt_trial.h"

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

// Half of the rows fit the maps, half judge them.
class GateChoiceTest : public ProfilerFixture {
 protected:
  static constexpr int32_t kRows = 16;

  GateChoiceTest() {
    std::string text;
    for (int i = 0; i < kRows; ++i) text += item_row(i);
    write_file_atomically(data_, text);
    prompts_ = prompts(kRows);
  }

  // Layers chosen to stay without a map. Maps of `spoilt` layers are fitted the wrong way round:
  // they lead away from the receiver.
  std::set<int32_t> choose(const std::set<int32_t>& spoilt, size_t num_trials) {
    TrialTools tools(models_);
    TranslationFit fit(models_, {2, {}});
    std::vector<ReferenceAnswer> references;
    for (size_t i = 0; i < prompts_.size(); ++i) {
      PromptTrial trial(tools, prompts_[i]);
      ContextTrial::LayerVisit proper =
          fit.visit(i % 2 == 0 ? ShapeChoice::kFold : 1, trial.context().num_tokens());
      ContextTrial::LayerVisit visit = proper;
      visit.outputs = [&](int32_t layer, const BlockTable& sender, const BlockTable& receiver) {
        bool is_spoilt = spoilt.contains(layer);
        proper.outputs(layer, is_spoilt ? receiver : sender, is_spoilt ? sender : receiver);
      };
      trial.context().read_both({}, visit);
      references.push_back(trial.answer_in_full({kAnswerTokens, tokenizer_->end_of_turn_ids}));
    }
    std::vector<ShapeTrial> trials;
    for (size_t i = 0; i < prompts_.size() && trials.size() < num_trials; i += 2)
      trials.push_back({&prompts_[i], &references[i]});
    GateChoice gates(tools, fit, {});
    std::set<int32_t> chosen = gates.choose(trials, [this] { ++num_pauses_; });
    layer_tokens_ = gates.layer_tokens();
    return chosen;
  }

  ModelPair models_ = pair("base", "alpha");
  std::vector<QaPrompt> prompts_;
  int num_pauses_ = 0;
  int64_t layer_tokens_ = 0;
};

TEST_F(GateChoiceTest, LayersWhoseMapsLeadAwayStayAsTheyAre) {
  const std::set<int32_t> proper = choose({}, kRows / 2);
  EXPECT_GE(num_pauses_, (kLayers + 1) * kRows / 2) << "before every map of every context";
  EXPECT_GT(layer_tokens_, 0);
  EXPECT_FALSE(proper.contains(1));
  EXPECT_FALSE(proper.contains(2));
  EXPECT_EQ(choose({1, 2}, kRows / 2), (std::set<int32_t>{1, 2}));
}

TEST_F(GateChoiceTest, FewContextsAreNotEvenTried) {
  EXPECT_TRUE(choose({1, 2}, 5).empty());
  EXPECT_EQ(num_pauses_, 0);
  EXPECT_EQ(layer_tokens_, 0);
}

}  // namespace
}  // namespace droidspeak
