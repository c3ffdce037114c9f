// What a variant finds of its own prompts, through the whole engine.
#include <algorithm>
#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/shared_family.h"

namespace droidspeak {
namespace {

TEST(PrefixCache, LoadsWhatTheVariantHasRead) {
  TinyFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  std::vector<int32_t> prompt = random_prompt(1, 300);
  std::vector<int32_t> expected = family.reference_greedy("alpha", prompt, 12);
  GenerationRequest request{.model = "alpha", .prompt = prompt, .max_tokens = 12};
  Outcome first = generate(engine, request);
  Outcome second = generate(engine, request);
  EXPECT_EQ(first.tokens, expected);
  EXPECT_EQ(second.tokens, expected);
  EXPECT_EQ(first.report.cached_tokens, 0);
  EXPECT_EQ(second.report.cached_tokens, 256);
  EXPECT_EQ(second.report.sender, "");
  EXPECT_EQ(second.report.plan, "full");
  EXPECT_EQ(engine.metrics().prefix_cache_hits, 256u);
}

TEST(PrefixCache, AlwaysComputesTheLastToken) {
  TinyFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  GenerationRequest request{
      .model = "base", .prompt = random_prompt(1, 2 * kBlockTokens), .max_tokens = 3};
  std::vector<int32_t> first = generate(engine, request).tokens;
  Outcome second = generate(engine, request);
  EXPECT_EQ(second.report.cached_tokens, kBlockTokens);
  EXPECT_EQ(second.tokens, first);
}

TEST(PrefixCache, VariantsWithoutAPlanBookShareNothing) {
  TinyFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  std::vector<int32_t> prompt = random_prompt(1, 300);
  for (const char* model : {"base", "alpha", "beta"}) {
    EXPECT_EQ(
        generate(engine, {.model = model, .prompt = prompt, .max_tokens = 2}).report.cached_tokens,
        0)
        << model;
  }
}

TEST(PrefixCache, SaltsNeverShare) {
  SharedFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  std::vector<int32_t> prompt = random_prompt(1, 300);
  auto cached = [&](const std::string& model, const std::string& salt) {
    GenerationRequest request{
        .model = model, .prompt = prompt, .max_tokens = 2, .cache_salt = salt, .min_quality = 0.0};
    return generate(engine, request).report.cached_tokens;
  };
  EXPECT_EQ(cached("base", "one"), 0);
  EXPECT_EQ(cached("base", "two"), 0);
  EXPECT_EQ(cached("alpha", "three"), 0);
  EXPECT_EQ(cached("base", ""), 0);
  EXPECT_EQ(cached("base", "one"), 256);
  EXPECT_EQ(cached("alpha", "one"), 256);
}

TEST(PrefixCache, PromptsThatAreBeingReadAreReadOnce) {
  TinyFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  for (int32_t num_tokens : {600, 100}) {
    std::vector<int32_t> prompt = random_prompt(static_cast<uint32_t>(num_tokens), num_tokens);
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (uint64_t seed = 0; seed < 4; ++seed) {
      GenerationRequest request{.model = "base",
                                .prompt = prompt,
                                .max_tokens = 4,
                                .sampling = {.temperature = 1, .seed = seed}};
      streams.push_back(std::move(engine.submit(request)).take_or_throw());
    }
    int32_t cached = 0;
    for (auto& stream : streams) cached += collect(*stream).report.cached_tokens;
    EXPECT_EQ(cached, 3 * (num_tokens / kBlockTokens) * kBlockTokens);
  }
}

// The first of them reads the context; the others hold it with it.
TEST(PrefixCache, QuestionsOnOneContextHoldItOnce) {
  constexpr int32_t kContextBlocks = 16;
  constexpr int32_t kQuestions = 8;
  TinyFamily family;
  EngineOptions options = tiny_options(256);
  Engine engine(family.ops(), family.file(), options);
  std::vector<std::shared_ptr<TokenStream>> streams;
  std::vector<std::vector<int32_t>> prompts;
  for (uint32_t seed = 0; seed < kQuestions; ++seed) {
    prompts.push_back(question(seed, kContextBlocks * kBlockTokens, 10));
    GenerationRequest request{.model = "base", .prompt = prompts.back(), .max_tokens = 40};
    streams.push_back(std::move(engine.submit(request)).take_or_throw());
  }
  double usage = 0;
  std::vector<Outcome> outcomes;
  for (auto& stream : streams) {
    usage = std::max(usage, engine.metrics().kv_usage);
    outcomes.push_back(collect(*stream));
  }
  EXPECT_EQ(engine.metrics().hits_by_tier["device"], kQuestions - 1u);
  EXPECT_EQ(engine.metrics().bytes_loaded, 0u);
  EXPECT_LE(usage * 256, kContextBlocks + kQuestions) << "and a block each of their own";
  for (size_t i = 0; i < outcomes.size(); ++i)
    EXPECT_EQ(outcomes[i].tokens, family.reference_greedy("base", prompts[i], 40)) << i;
}

// The pool has no room for two copies of the context: what others hold of it counts once.
TEST(PrefixCache, QuestionsOnOneContextAreAdmittedAtOnce) {
  constexpr int32_t kContextBlocks = 16;
  constexpr int32_t kQuestions = 16;
  constexpr int32_t kAnswerTokens = kBlockTokens - 4;
  TinyFamily family;
  // A block each of their own, and one to grow into.
  Engine engine(family.ops(), family.file(), tiny_options(kContextBlocks + 2 * kQuestions));
  std::vector<std::shared_ptr<TokenStream>> streams;
  std::vector<std::vector<int32_t>> prompts;
  for (uint32_t seed = 0; seed < kQuestions; ++seed) {
    prompts.push_back(question(seed, kContextBlocks * kBlockTokens, 3));
    GenerationRequest request{
        .model = "base", .prompt = prompts.back(), .max_tokens = kAnswerTokens};
    streams.push_back(std::move(engine.submit(request)).take_or_throw());
  }
  int32_t most = 0;
  std::atomic<bool> has_ended = false;
  std::thread watcher([&] {
    while (!has_ended) most = std::max(most, engine.metrics().running);
  });
  std::vector<Outcome> outcomes;
  for (auto& stream : streams) outcomes.push_back(collect(*stream));
  has_ended = true;
  watcher.join();
  EXPECT_EQ(most, kQuestions);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    EXPECT_EQ(outcomes[i].tokens, family.reference_greedy("base", prompts[i], kAnswerTokens)) << i;
  }
}

// What was given out anew comes from the store.
TEST(PrefixCache, ContextsThatTheDeviceHasForgottenAreLoaded) {
  TinyFamily family;
  Engine engine(family.ops(), family.file(), tiny_options(8));
  std::vector<int32_t> prompt = random_prompt(1, 300);
  GenerationRequest request{.model = "alpha", .prompt = prompt, .max_tokens = 12};
  std::vector<int32_t> first = generate(engine, request).tokens;
  generate(engine,
           {.model = "beta", .prompt = random_prompt(2, 7 * kBlockTokens), .max_tokens = 1});
  Outcome again = generate(engine, request);
  EXPECT_EQ(again.tokens, first);
  EXPECT_EQ(again.report.cached_tokens, 256);
  EXPECT_GT(engine.metrics().bytes_loaded, 0u);
}

std::vector<int32_t> next_turn(std::vector<int32_t> prompt,
                               const std::vector<int32_t>& answer,
                               const std::vector<int32_t>& more) {
  prompt.insert(prompt.end(), answer.begin(), answer.end());
  prompt.insert(prompt.end(), more.begin(), more.end());
  return prompt;
}

TEST(PrefixCache, TheNextTurnBeginsBehindTheAnswer) {
  TinyFamily family;
  TemporaryFolder disk;
  EngineOptions options = tiny_options();
  options.store.disk_folder = disk.path();
  std::vector<int32_t> turn = random_prompt(1, 30);
  Outcome second;
  {
    Engine engine(family.ops(), family.file(), options);
    Outcome first = generate(engine, {.model = "alpha", .prompt = turn, .max_tokens = 150});
    turn = next_turn(turn, first.tokens, random_prompt(2, 20));
    second = generate(engine, {.model = "alpha", .prompt = turn, .max_tokens = 12});
    EXPECT_EQ(second.report.cached_tokens, 128) << "of 30 + 150 - 1 with K/V";
    EXPECT_EQ(engine.metrics().hits_by_tier["device"], 1u);
  }
  EXPECT_EQ(second.tokens, family.reference_greedy("alpha", turn, 12));
  Engine restarted(family.ops(), family.file(), options);
  Outcome again = generate(restarted, {.model = "alpha", .prompt = turn, .max_tokens = 12});
  EXPECT_EQ(again.report.cached_tokens, 192) << "the second turn has read the third block";
  EXPECT_EQ(again.tokens, second.tokens);
}

// With E of the answer, too.
TEST(PrefixCache, TheNextTurnOfAnotherVariantTakesTheAnswerByAPlan) {
  SharedFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  std::vector<int32_t> turn = random_prompt(1, 100);
  Outcome first = generate(engine, {.model = "base", .prompt = turn, .max_tokens = 120});
  turn = next_turn(turn, first.tokens, random_prompt(2, 20));
  Outcome second = generate(engine, by_name("alpha", turn, "0,2,3"));
  EXPECT_EQ(second.report.sender, "base");
  EXPECT_EQ(second.report.plan, "0,2,3");
  EXPECT_EQ(second.report.reused_tokens, 192);
  // Its own answer extends what it has mixed.
  turn = next_turn(turn, second.tokens, random_prompt(3, 80));
  Outcome third = generate(engine, by_name("alpha", turn, "0,2,3"));
  EXPECT_EQ(third.report.reused_tokens, 192);
  EXPECT_EQ(third.report.recomputed_layers, 0) << "mixed before";
}

TEST(PrefixCache, QuestionsOnOneMixedContextHoldItOnce) {
  SharedFamily family;
  for (const char* plan : {"0,2,3", "reuse"}) {
    Engine engine(family.ops(), family.file(), tiny_options());
    generate(engine, {.model = "base", .prompt = question(1, 256, 10), .max_tokens = 1});
    Outcome first = generate(engine, by_name("alpha", question(2, 256, 10), plan));
    uint64_t loaded = engine.metrics().bytes_loaded;
    Outcome same = generate(engine, by_name("alpha", question(2, 256, 10), plan));
    EXPECT_EQ(engine.metrics().hits_by_tier["device"], 1u) << plan;
    EXPECT_EQ(engine.metrics().bytes_loaded, loaded) << plan;
    EXPECT_EQ(same.tokens, first.tokens) << plan;
    EXPECT_EQ(same.report.plan, plan);
    EXPECT_EQ(same.report.sender, "base");
    EXPECT_EQ(same.report.reused_tokens, 256);
    EXPECT_EQ(same.report.recomputed_layers, 0);
  }
}

// The request's own K/V must not reach another request.
TEST(PrefixCache, ContextsWithTokensThatWereLookedAtAreNotShared) {
  SharedFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  generate(engine, {.model = "base", .prompt = question(1, 256, 10), .max_tokens = 1});
  Outcome looked = generate(engine, by_name("alpha", question(2, 256, 10), "reuse+50%"));
  EXPECT_EQ(looked.report.looked_at_tokens, 128);
  Outcome plain = generate(engine, by_name("alpha", question(2, 256, 10), "reuse"));
  EXPECT_EQ(engine.metrics().hits_by_tier["device"], 0u);
  Outcome a_little = generate(engine, by_name("alpha", question(2, 256, 10), "reuse+0.1%"));
  EXPECT_EQ(a_little.report.looked_at_tokens, 1);
  EXPECT_EQ(engine.metrics().hits_by_tier["device"], 0u) << "nor does it take what others hold";
  Engine fresh(family.ops(), family.file(), tiny_options());
  generate(fresh, {.model = "base", .prompt = question(1, 256, 10), .max_tokens = 1});
  EXPECT_EQ(plain.tokens, generate(fresh, by_name("alpha", question(2, 256, 10), "reuse")).tokens);
}

}  // namespace
}  // namespace droidspeak
