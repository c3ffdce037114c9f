#include "engine/batch_runner.h"

#include <gtest/gtest.h>

#include "engine/engine_fixture.h"
#include "support/forwarding_ops.h"

namespace droidspeak {
namespace {

// Notes which batches may be repeated, and gives them some rows more.
class RepeatingOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;

  int64_t repeated_rows(int64_t rows) const override {
    asked.push_back(rows);
    return rows + 3;
  }

  mutable std::vector<int64_t> asked;
};

class RunningBatches : public testing::Test {
 protected:
  std::unique_ptr<Sequence> sequence(const std::string& model, int32_t num_tokens) {
    GenerationRequest request{
        .model = model, .prompt = random_prompt(1, num_tokens), .max_tokens = 8};
    auto made = std::make_unique<Sequence>(SequenceOptions{.request = std::move(request),
                                                           .variant = models_.get(model),
                                                           .vocab_size = 320,
                                                           .max_tokens = num_tokens + 8});
    EXPECT_TRUE(made->blocks.reserve(kv_.pool(), num_tokens + 8));
    return made;
  }

  // The next rows of each.
  BatchRunner::Sampled run(const std::vector<Step::Work>& work) {
    std::vector<Batch> batches = build_batches(work);
    EXPECT_EQ(batches.size(), 1u);
    BatchRunner::Sampled sampled = runner_.run(batches.front());
    for (const Step::Work& one : work) one.sequence->num_computed += one.num_tokens;
    return sampled;
  }

  TinyFamily family_;
  RepeatingOps ops_{family_.ops()};
  ModelFamily models_{ops_, family_.file(), TinyFamily::exact()};
  KvLayout layout_ = models_.config().kv_layout(DType::kF32);
  KvCache kv_{ops_.device(), layout_, 16 * layout_.block_bytes()};
  BatchRunner runner_{ops_, kv_};
};

TEST_F(RunningBatches, OnlyThoseOfSingleRowsAreRepeated) {
  auto one = sequence("base", 20);
  auto two = sequence("base", 30);
  std::vector<int32_t> first;
  for (const BatchRunner::Sample& sample : run({{one.get(), 20}, {two.get(), 30}}))
    first.push_back(sample.tokens.at(0).token);
  EXPECT_TRUE(ops_.asked.empty()) << "prompts are of any length";
  one->tokens.push_back(first[0]);
  two->tokens.push_back(first[1]);
  BatchRunner::Sampled second = run({{one.get(), 1}, {two.get(), 1}});
  EXPECT_EQ(ops_.asked, std::vector<int64_t>{2});
  EXPECT_EQ(second[0].tokens.at(0).token,
            family_.reference_greedy("base", random_prompt(1, 20), 2)[1]);
  EXPECT_EQ(second[1].tokens.at(0).token,
            family_.reference_greedy("base", random_prompt(1, 30), 2)[1]);
  auto three = sequence("base", 10);
  one->tokens.push_back(second[0].tokens[0].token);
  run({{one.get(), 1}, {three.get(), 10}});
  EXPECT_EQ(ops_.asked.size(), 1u) << "one of them is a prompt";
}

TEST_F(RunningBatches, WhatIsLookedAtIsNotRepeated) {
  auto drafting = sequence("base", 2 * kBlockTokens + 1);
  run({{drafting.get(), drafting->num_missing()}});
  drafting->looking = std::make_unique<Looking>();
  drafting->looking->stage = Looking::Stage::kDraft;
  drafting->looking->draft = 5;
  drafting->looking->look = std::make_unique<Look>(ops_, 2 * kBlockTokens, 0);
  Step::Work work{drafting.get(), 1};
  Batch batch = build_batches(std::span(&work, 1)).front();
  BatchRunner::Sampled sampled = runner_.run(batch);
  EXPECT_TRUE(ops_.asked.empty());
  EXPECT_TRUE(sampled[0].tokens.empty()) << "it gives no token";
  float sum = 0;
  for (float mass : drafting->looking->look->sums()) sum += mass;
  EXPECT_GT(sum, 0);
}

TEST_F(RunningBatches, LogprobsOfAPromptThatIsReadAgainAreNotAddedTwice) {
  auto scored = sequence("alpha", 200);
  scored->request.wants_prompt_logprobs = true;
  scored->request.num_prompt_alternatives = 2;
  run({{scored.get(), 100}});
  ASSERT_EQ(scored->prompt_logprobs.tokens.size(), 100u);
  const float before = scored->prompt_logprobs.tokens[50].logprob;
  scored->num_computed = 0;  // preempted
  run({{scored.get(), 150}});
  EXPECT_EQ(scored->prompt_logprobs.tokens.size(), 150u);
  run({{scored.get(), 50}});
  std::vector<int32_t> prompt = random_prompt(1, 200);
  ASSERT_EQ(scored->prompt_logprobs.tokens.size(), 199u) << "the last one has no next token";
  for (size_t i = 0; i < 199; ++i)
    EXPECT_EQ(scored->prompt_logprobs.tokens[i].token, prompt[i + 1]) << i;
  EXPECT_EQ(scored->prompt_logprobs.tokens[50].logprob, before);
  EXPECT_EQ(scored->prompt_logprobs.tokens[150].top.size(), 2u);
}

// What a row answers depends on nobody's drafts but its own.
TEST_F(RunningBatches, DraftsAreTakenAsFarAsTheyAreRight) {
  std::vector<int32_t> prompt = random_prompt(1, 20);
  std::vector<int32_t> right = family_.reference_greedy("base", prompt, 5);
  for (bool is_greedy : {true, false}) {
    SCOPED_TRACE(is_greedy);
    std::vector<std::unique_ptr<Sequence>> all;
    std::vector<Step::Work> work;
    for (size_t num_right : {0u, 3u, 1u}) {
      auto& one = all.emplace_back(sequence("base", 20));
      if (!is_greedy) one->request.num_top_logprobs = 1;
      run({{one.get(), 20}});
      one->tokens.push_back(right[0]);
      one->drafts = {right[1], right[2], right[3]};
      if (num_right < 3) one->drafts[num_right] = (right[num_right + 1] + 1) % 256;
      work.push_back({one.get(), 1});
    }
    BatchRunner::Sampled sampled = run(work);
    auto tokens = [&](size_t i) {
      std::vector<int32_t> ids;
      for (const SampledToken& token : sampled[i].tokens) ids.push_back(token.token);
      return ids;
    };
    EXPECT_EQ(tokens(0), (std::vector<int32_t>{right[1]}));
    EXPECT_EQ(tokens(1), (std::vector<int32_t>{right[1], right[2], right[3], right[4]}));
    EXPECT_EQ(tokens(2), (std::vector<int32_t>{right[1], right[2]}));
  }
}

}  // namespace
}  // namespace droidspeak
