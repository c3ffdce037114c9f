// A tiny family with rows to ask it about, for tests that measure plans.
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

  TemporaryFolder folder_;
  std::filesystem::path data_ = folder_.path() / "rows.jsonl";
  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Ops> ops_ = make_cpu_ops(*device_, 1);
  std::unique_ptr<ModelFamily> family_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<KvCache> kv_;
};

}  // namespace droidspeak
