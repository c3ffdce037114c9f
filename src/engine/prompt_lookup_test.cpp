#include "engine/prompt_lookup.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/shared_family.h"

namespace droidspeak {
namespace {

using Tokens = std::vector<int32_t>;

TEST(PromptLookup, DraftsWhatFollowedTheLastTokensBefore) {
  PromptLookup lookup;
  EXPECT_EQ(lookup.draft(Tokens{9, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3}, 8), (Tokens{4, 5, 6}));
  lookup.judge(3);
  EXPECT_EQ(lookup.draft(Tokens{9, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6}, 2), (Tokens{7, 1}));
}

TEST(PromptLookup, TakesTheLastOfSeveralPlaces) {
  PromptLookup lookup;
  EXPECT_EQ(lookup.draft(Tokens{1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3}, 1), Tokens{8});
}

TEST(PromptLookup, DraftsNothingBehindTokensThatAreNew) {
  PromptLookup lookup;
  EXPECT_EQ(lookup.draft(Tokens{1, 2}, 8), Tokens{});
  EXPECT_EQ(lookup.draft(Tokens{1, 2, 3}, 8), Tokens{}) << "they stand here only";
  EXPECT_EQ(lookup.draft(Tokens{1, 2, 3, 5, 2, 3}, 8), Tokens{});
  EXPECT_EQ(lookup.draft(Tokens{1, 2, 3, 5, 1, 2, 3}, 0), Tokens{}) << "no room";
}

TEST(PromptLookup, RestsLongerAfterEveryFailure) {
  PromptLookup lookup;
  Tokens tokens{1, 2, 3, 4, 1, 2, 3};
  std::vector<int> steps_between;
  for (int failures = 0, steps = 0; failures < 4; ++steps) {
    if (lookup.draft(tokens, 4).empty()) continue;
    lookup.judge(0);
    steps_between.push_back(steps);
    steps = 0;
    ++failures;
  }
  EXPECT_EQ(steps_between, (std::vector<int>{0, 5, 17, 65}));
  while (lookup.draft(tokens, 4).empty()) {
  }
  lookup.judge(3);
  EXPECT_FALSE(lookup.draft(tokens, 4).empty()) << "at once after a success";
  lookup.judge(0);
  int rest = 0;
  while (lookup.draft(tokens, 4).empty()) ++rest;
  EXPECT_EQ(rest, 4) << "failures before a success are forgotten";
}

TEST(PromptLookup, DraftsGetLongerWhileTheyAreRight) {
  PromptLookup lookup;
  Tokens tokens;
  for (int32_t i = 0; i < 60; ++i) tokens.push_back(i % 20);
  auto length = [&] { return lookup.draft(tokens, 100).size(); };
  EXPECT_EQ(length(), 3u);
  lookup.judge(3);
  EXPECT_EQ(length(), 6u);
  lookup.judge(6);
  EXPECT_EQ(length(), 8u);
  lookup.judge(8);
  EXPECT_EQ(length(), 8u);
  lookup.judge(4);
  EXPECT_EQ(length(), 8u) << "half of it was right";
  lookup.judge(3);
  EXPECT_EQ(length(), 3u) << "shorter, and at once: something was right";
  lookup.judge(0);
  for (int rest = 0; rest < 4; ++rest) EXPECT_EQ(length(), 0u) << rest;
  EXPECT_EQ(length(), 3u);
}

TEST(PromptLookup, RestsForSoLongAtMost) {
  PromptLookup lookup;
  Tokens tokens{1, 2, 3, 4, 1, 2, 3};
  int longest = 0;
  for (int failures = 0, steps = 0; failures < 8; ++steps) {
    if (lookup.draft(tokens, 4).empty()) continue;
    lookup.judge(0);
    longest = std::max(longest, steps);
    steps = 0;
    ++failures;
  }
  EXPECT_EQ(longest, 257);
}

std::vector<Outcome> answers_with(TinyFamily& family,
                                  Speculation speculation,
                                  const std::vector<GenerationRequest>& requests,
                                  EngineOptions options,
                                  EngineMetrics& metrics) {
  options.speculation = speculation;
  Engine engine(family.ops(), family.file(), options);
  generate(engine, {.model = "base", .prompt = question(0, 256, 10), .max_tokens = 1});
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (const GenerationRequest& request : requests)
    streams.push_back(std::move(engine.submit(request)).take_or_throw());
  std::vector<Outcome> outcomes;
  for (auto& stream : streams) outcomes.push_back(collect(*stream));
  metrics = engine.metrics();
  return outcomes;
}

// Prompts that repeat themselves, so that there is something to quote, greedy and sampled, on all
// variants and with plans.
std::vector<GenerationRequest> quoting_requests() {
  std::vector<GenerationRequest> requests;
  for (uint32_t i = 0; i < 12; ++i) {
    Tokens prompt = i % 4 == 3 ? question(i, 256, 10) : Tokens();
    Tokens part = random_prompt(i, 12);
    for (int repeat = 0; repeat < 6; ++repeat)
      prompt.insert(prompt.end(), part.begin(), part.end());
    GenerationRequest request{
        .model = std::vector{"base", "alpha", "beta"}[i % 3], .prompt = prompt, .max_tokens = 90};
    request.num_top_logprobs = i % 2 == 0 ? 3 : -1;
    if (i % 4 >= 2) request.sampling = {.temperature = 0.3f, .top_p = 0.9f, .seed = i};
    if (i % 4 == 3 && request.model != "base")
      request.sharing = {SharingRequest::Mode::kExplicit, "base", "reuse+20%"};
    requests.push_back(request);
  }
  return requests;
}

TEST(Speculation, ChangesNoBitOfAnAnswer) {
  SharedFamily family;
  std::vector<GenerationRequest> requests = quoting_requests();
  for (int32_t num_blocks : {128, 12}) {
    EngineMetrics metrics;
    auto plain =
        answers_with(family, Speculation::kNone, requests, tiny_options(num_blocks), metrics);
    EXPECT_EQ(metrics.drafted_tokens, 0u);
    auto ahead =
        answers_with(family, Speculation::kLookup, requests, tiny_options(num_blocks), metrics);
    EXPECT_GT(metrics.accepted_tokens, 50u);
    EXPECT_LT(metrics.accepted_tokens, metrics.drafted_tokens) << "some are wrong";
    EXPECT_LT(metrics.drafted_tokens, 12u * 90 * 16) << "so many for each token at most";
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(ahead[i].tokens, plain[i].tokens) << i << " with " << num_blocks;
      EXPECT_EQ(ahead[i].finished.has_value(), plain[i].finished.has_value());
      ASSERT_EQ(ahead[i].sampled.size(), plain[i].sampled.size());
      for (size_t j = 0; j < plain[i].sampled.size(); ++j)
        EXPECT_EQ(ahead[i].sampled[j].logprob, plain[i].sampled[j].logprob) << i << " token " << j;
    }
  }
}

TEST(Speculation, EndsWhereTheAnswerEnds) {
  SharedFamily family;
  GenerationRequest request = quoting_requests()[0];
  EngineMetrics metrics;
  Tokens whole =
      answers_with(family, Speculation::kNone, {request}, tiny_options(), metrics)[0].tokens;
  for (size_t length : {1, 2, 20, 37}) {
    GenerationRequest shorter = request;
    shorter.max_tokens = static_cast<int32_t>(length);
    GenerationRequest stopped = request;
    stopped.stop_tokens = std::set<int32_t>{whole[length]};
    auto outcomes =
        answers_with(family, Speculation::kLookup, {shorter, stopped}, tiny_options(), metrics);
    EXPECT_EQ(outcomes[0].tokens,
              Tokens(whole.begin(), whole.begin() + std::ssize(outcomes[0].tokens)));
    EXPECT_EQ(outcomes[0].tokens.size(), length);
    auto stop = std::find(whole.begin(), whole.end(), whole[length]);
    EXPECT_EQ(outcomes[1].tokens, Tokens(whole.begin(), stop));
  }
}

}  // namespace
}  // namespace droidspeak
