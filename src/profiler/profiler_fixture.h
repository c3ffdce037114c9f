// A tiny family with rows to ask it about, for tests that measure plans, and profiles of it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/file.h"
#include "profiler/context_trial.h"
#include "profiler/data.h"
#include "profiler/profiler.h"
#include "sharing/prompt_runner.h"
#include "support/tiny_model.h"

namespace droidspeak {

// `answers`: a JSON list; empty: the right number.
inline std::string item_row(int number, std::string answers = "") {
  std::string documents;
  for (int i = 0; i < 4; ++i) {
    documents += fmt::format(
        R"({}{{"title":"Item {}","text":"Number {} of set {} weighs {} grams and is {} years old."}})",
        i == 0 ? "" : ",", i, i, number, 17 * number + i, 3 * i + number);
  }
  if (answers.empty()) answers = fmt::format(R"(["{}"])", 3 * (number % 4) + number);
  return fmt::format(
             R"({{"id":"{}","documents":[{}],"question":"How old is item {}?","answers":{}}})",
             number, documents, number % 4, answers) +
         "\n";
}

class ProfilerFixture : public testing::Test {
 protected:
  static constexpr int32_t kLayers = 6;
  static constexpr int32_t kAnswerTokens = 6;

  ProfilerFixture() {
    TinyModelOptions model;
    model.num_layers = kLayers;
    FamilyFile file = read_family_file(write_tiny_family(folder_.path() / "family", model));
    family_ = std::make_unique<ModelFamily>(*ops_, file, FamilyOptions{Precision::kExact, 0});
    tokenizer_ = load_hf_tokenizer(file.base.path);
    kv_ = std::make_unique<KvCache>(*device_, family_->config().kv_layout(DType::kF32),
                                    size_t{64} << 20);
    std::string text;
    for (int i = 0; i < 5; ++i) text += item_row(i);
    write_file_atomically(data_, text);
  }

  ModelPair pair(const std::string& sender, const std::string& receiver) {
    return {*ops_, *kv_, family_->get(sender), family_->get(receiver)};
  }

  std::vector<QaPrompt> prompts(int32_t most = 4) {
    return make_prompts(*tokenizer_, read_qa_file(data_), {most, 4096, kAnswerTokens}).prompts;
  }

  ProfileOptions options(const std::string& name) const {
    ProfileOptions result;
    result.data = data_;
    result.out = folder_.path() / name;
    result.contexts = 4;
    result.answer_tokens = kAnswerTokens;
    return result;
  }

  static void write_rows(const std::filesystem::path& path, const std::vector<int>& numbers) {
    std::string text;
    for (int number : numbers) text += item_row(number);
    write_file_atomically(path, text);
  }

  TemporaryFolder folder_;
  std::filesystem::path data_ = folder_.path() / "rows.jsonl";
  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Ops> ops_ = make_cpu_ops(*device_, 1);
  std::unique_ptr<ModelFamily> family_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<KvCache> kv_;
};

inline void expect_same_measurements(const PlanBook& a, const PlanBook& b) {
  ASSERT_EQ(a.frontier.size(), b.frontier.size());
  for (size_t i = 0; i < a.frontier.size(); ++i) {
    EXPECT_EQ(a.frontier[i].plan, b.frontier[i].plan);
    EXPECT_EQ(a.frontier[i].translated, b.frontier[i].translated);
    EXPECT_EQ(a.frontier[i].quality.kl, b.frontier[i].quality.kl);
    EXPECT_EQ(a.frontier[i].quality.score, b.frontier[i].quality.score);
    EXPECT_EQ(a.frontier[i].quality.gold_lost, b.frontier[i].quality.gold_lost);
    EXPECT_EQ(a.frontier[i].quality.gold_lost_error, b.frontier[i].quality.gold_lost_error);
    EXPECT_EQ(a.frontier[i].quality_index, b.frontier[i].quality_index);
  }
  ASSERT_EQ(a.heat_map.size(), b.heat_map.size());
  for (size_t i = 0; i < a.heat_map.size(); ++i) EXPECT_EQ(a.heat_map[i].kl, b.heat_map[i].kl);
  ASSERT_EQ(a.sensitivity.size(), b.sensitivity.size());
  for (size_t i = 0; i < a.sensitivity.size(); ++i)
    EXPECT_EQ(a.sensitivity[i].kl, b.sensitivity[i].kl);
  EXPECT_EQ(a.full_gold_probability, b.full_gold_probability);
  EXPECT_EQ(a.prefill_equivalents, b.prefill_equivalents);
}

}  // namespace droidspeak
