// Activated LoRA through the whole engine: the base in front of the invocation, the adapter from it
// on, and caches that are exact both ways.
#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/shared_family.h"

namespace droidspeak {
namespace {

using testing::HasSubstr;

const std::vector<int32_t> kInvocation{300, 301, 302};  // random prompts have tokens below 256

// SharedFamily with two activated LoRAs of one invocation, and one of another.
class ActivatedEngine : public testing::Test {
 protected:
  ActivatedEngine() {
    family_.add_activated("judge", kInvocation, 501);
    family_.add_activated("critic", kInvocation, 502);
    family_.add_activated("writer", {310}, 503);
  }

  std::unique_ptr<Engine> start(const EngineOptions& options = tiny_options()) {
    return std::make_unique<Engine>(family_.ops(), family_.file(), options);
  }

  std::vector<int32_t> reference(const std::string& model, const std::vector<int32_t>& prompt) {
    return family_.reference_greedy(model, prompt, kAnswer);
  }

  static GenerationRequest ask(const std::string& model, std::vector<int32_t> prompt) {
    return {.model = model, .prompt = std::move(prompt), .max_tokens = kAnswer};
  }

  // Random tokens with the invocation at these places.
  static std::vector<int32_t> invoked(uint32_t seed,
                                      int32_t size,
                                      std::initializer_list<int32_t> places) {
    std::vector<int32_t> prompt = random_prompt(seed, size);
    for (int32_t place : places) std::ranges::copy(kInvocation, prompt.begin() + place);
    return prompt;
  }

  static constexpr int32_t kAnswer = 8;
  SharedFamily family_;
};

TEST_F(ActivatedEngine, TakesTheCacheOfItsBase) {
  std::vector<int32_t> prompt = invoked(1, 300, {200});
  std::vector<int32_t> expected = reference("judge", prompt);
  ASSERT_NE(expected, reference("base", prompt)) << "the adapter must matter for this test";
  auto engine = start();
  generate(*engine, ask("base", prompt));
  Outcome outcome = generate(*engine, ask("judge", prompt));
  EXPECT_EQ(outcome.tokens, expected);
  EXPECT_EQ(outcome.report.sender, "base");
  EXPECT_EQ(outcome.report.plan, "reuse");
  EXPECT_FALSE(outcome.report.translated);
  EXPECT_EQ(outcome.report.reused_tokens, 192);
  EXPECT_EQ(outcome.report.cached_tokens, 192);
  EXPECT_EQ(outcome.report.recomputed_layers, 0);
  EXPECT_EQ(outcome.report.fallback, "");
  EXPECT_EQ((engine->metrics().pairs[{"base", "judge"}].tokens_reused), 192u);
  // Behind the invocation lies its own.
  Outcome again = generate(*engine, ask("judge", prompt));
  EXPECT_EQ(again.tokens, expected);
  EXPECT_EQ(again.report.cached_tokens, 256);
  EXPECT_EQ(again.report.reused_tokens, 192);
  // That is nobody else's.
  Outcome critic = generate(*engine, ask("critic", prompt));
  EXPECT_EQ(critic.report.cached_tokens, 192);
  EXPECT_EQ(generate(*engine, ask("base", prompt)).report.cached_tokens, 256);
}

TEST_F(ActivatedEngine, LeavesTheBaseItsCache) {
  std::vector<int32_t> prompt = invoked(2, 300, {200});
  std::vector<int32_t> base_answer = reference("base", prompt);
  std::vector<int32_t> critic_answer = reference("critic", prompt);
  auto engine = start();
  EXPECT_EQ(generate(*engine, ask("judge", prompt)).report.cached_tokens, 0);
  Outcome base = generate(*engine, ask("base", prompt));
  EXPECT_EQ(base.tokens, base_answer);
  EXPECT_EQ(base.report.cached_tokens, 192);
  EXPECT_EQ(base.report.sender, "");
  EXPECT_EQ(base.report.plan, "full");
  Outcome critic = generate(*engine, ask("critic", prompt));
  EXPECT_EQ(critic.tokens, critic_answer);
  EXPECT_EQ(critic.report.cached_tokens, 192);
}

// With E where plans from the base need it.
TEST_F(ActivatedEngine, LeavesWhatOthersTakeFromTheBase) {
  std::vector<int32_t> prompt = invoked(3, 300, {200});
  auto alone = start();
  generate(*alone, ask("base", std::vector<int32_t>(prompt.begin(), prompt.begin() + 192)));
  std::vector<int32_t> expected = generate(*alone, by_name("alpha", prompt, "0,2,3")).tokens;
  alone.reset();
  auto engine = start();
  generate(*engine, ask("judge", prompt));
  Outcome outcome = generate(*engine, by_name("alpha", prompt, "0,2,3"));
  EXPECT_EQ(outcome.report.sender, "base");
  EXPECT_EQ(outcome.report.reused_tokens, 192);
  EXPECT_EQ(outcome.tokens, expected);
}

TEST_F(ActivatedEngine, WithoutTheInvocationTheAnswerIsTheBases) {
  std::vector<int32_t> prompt = random_prompt(4, 200);
  std::vector<int32_t> expected = family_.reference_greedy("base", prompt, kAnswer);
  auto engine = start();
  Outcome outcome = generate(*engine, ask("judge", prompt));
  EXPECT_EQ(outcome.tokens, expected);
  EXPECT_EQ(outcome.report.sender, "");
  Outcome again = generate(*engine, ask("base", prompt));
  EXPECT_EQ(again.tokens, expected);
  EXPECT_EQ(again.report.cached_tokens, 192);
}

// Greedy bits do not show small errors: the logprobs of what was loaded are those of what was
// computed.
TEST_F(ActivatedEngine, CachedAnswersHaveTheBitsOfComputedOnes) {
  std::vector<int32_t> prompt = invoked(5, 300, {150});
  GenerationRequest request = ask("judge", prompt);
  request.num_top_logprobs = 5;
  auto logprobs = [&](const std::vector<std::string>& before) {
    auto engine = start();
    for (const std::string& model : before) generate(*engine, ask(model, prompt));
    std::vector<float> values;
    for (const SampledToken& token : generate(*engine, request).sampled) {
      values.push_back(token.logprob);
      for (const TokenLogprob& other : token.top) values.push_back(other.logprob);
    }
    return values;
  };
  std::vector<float> computed = logprobs({});
  ASSERT_EQ(computed.size(), 6u * kAnswer);
  EXPECT_EQ(logprobs({"base"}), computed);
  EXPECT_EQ(logprobs({"critic"}), computed);
  EXPECT_EQ(logprobs({"judge"}), computed);
  EXPECT_EQ(logprobs({"writer", "critic", "base"}), computed);
}

TEST_F(ActivatedEngine, TheLastInvocationCounts) {
  std::vector<int32_t> first = invoked(6, 150, {100});
  std::vector<int32_t> second = first;
  for (int32_t token : invoked(7, 150, {90})) second.push_back(token);
  std::vector<int32_t> expected = reference("judge", second);
  auto engine = start();
  generate(*engine, ask("judge", first));
  Outcome outcome = generate(*engine, ask("judge", second));
  EXPECT_EQ(outcome.tokens, expected);
  // Of the first turn the blocks in front of its invocation are what both compute.
  EXPECT_EQ(outcome.report.cached_tokens, 64);
}

// Positions at the ends, on both sides of a block's end, as the last tokens, twice, overlapping
// chunks, and by chance; whatever was read before and by whom.
TEST_F(ActivatedEngine, AnyPlaceAndAnyHistoryGiveTheReferencesAnswer) {
  struct Case {
    std::string model;
    std::vector<int32_t> prompt;
    std::vector<int32_t> expected;
  };

  std::vector<std::vector<int32_t>> prompts = {
      invoked(8, 200, {0}),   invoked(8, 200, {1}),       invoked(8, 200, {61}),
      invoked(8, 200, {62}),  invoked(8, 200, {63}),      invoked(8, 200, {64}),
      invoked(8, 200, {65}),  invoked(8, 200, {95}),      invoked(8, 200, {197}),
      invoked(8, 192, {189}), invoked(8, 200, {30, 130}), invoked(8, 200, {130, 133})};
  std::mt19937 random(9);
  for (int i = 0; i < 12; ++i) {
    auto size = static_cast<int32_t>(10 + random() % 250);
    auto place = static_cast<int32_t>(random() % static_cast<uint32_t>(size - 3));
    prompts.push_back(invoked(8, size, {place}));
  }
  std::vector<Case> cases;
  for (const auto& prompt : prompts) {
    for (const char* model : {"judge", "critic", "base"})
      cases.push_back({model, prompt, reference(model, prompt)});
  }
  auto engine = start();
  for (int round = 0; round < 3; ++round) {
    std::shuffle(cases.begin(), cases.end(), random);
    for (const Case& one : cases) {
      Outcome outcome = generate(*engine, ask(one.model, one.prompt));
      ASSERT_EQ(outcome.tokens, one.expected) << one.model << ", round " << round;
    }
  }
  EXPECT_GT(engine->metrics().prefix_cache_hits, 0u);
}

TEST_F(ActivatedEngine, BatchedAndPreemptedEqualsAlone) {
  std::vector<GenerationRequest> requests;
  std::vector<std::vector<int32_t>> expected;
  const char* models[] = {"judge", "critic", "base", "alpha", "writer"};
  for (int32_t i = 0; i < 15; ++i) {
    std::vector<int32_t> prompt =
        invoked(static_cast<uint32_t>(20 + i % 3), 90 + 7 * i, {10 + 5 * i});
    if (i % 5 == 4) prompt[60] = 310;
    GenerationRequest request = ask(models[i % 5], prompt);
    request.max_tokens = 140;
    request.sharing.mode = SharingRequest::Mode::kOff;
    requests.push_back(request);
    expected.push_back(family_.reference_greedy(request.model, prompt, request.max_tokens));
  }
  for (int32_t num_blocks : {128, 9}) {
    for (int32_t chunk : {96, 33}) {
      EngineOptions options = tiny_options(num_blocks);
      options.chunk_tokens = chunk;
      auto engine = start(options);
      std::vector<std::shared_ptr<TokenStream>> streams;
      for (const GenerationRequest& request : requests)
        streams.push_back(std::move(engine->submit(request)).take_or_throw());
      for (size_t i = 0; i < streams.size(); ++i)
        EXPECT_EQ(collect(*streams[i]).tokens, expected[i]) << i << ", blocks " << num_blocks;
      EXPECT_EQ(engine->metrics().preemptions > 0, num_blocks < 128);
    }
  }
}

// What the base is just reading is waited for, not read again.
TEST_F(ActivatedEngine, AContextThatTheBaseIsReadingIsReadOnce) {
  std::vector<int32_t> prompt = invoked(10, 600, {580});
  auto engine = start();
  auto base = std::move(engine->submit(ask("base", prompt))).take_or_throw();
  auto judge = std::move(engine->submit(ask("judge", prompt))).take_or_throw();
  EXPECT_EQ(collect(*base).report.cached_tokens, 0);
  EXPECT_EQ(collect(*judge).report.cached_tokens, 576);
}

TEST_F(ActivatedEngine, UnloadingItLeavesTheBasesBlocks) {
  std::vector<int32_t> prompt = invoked(11, 300, {130});
  auto engine = start();
  generate(*engine, ask("judge", prompt));
  ASSERT_TRUE(engine->unload_adapter("judge"));
  EXPECT_EQ(generate(*engine, ask("critic", prompt)).report.cached_tokens, 128);
  ASSERT_TRUE(engine->load_adapter("judge", family_.folder() / "adapters/judge"));
  Outcome again = generate(*engine, ask("judge", prompt));
  EXPECT_EQ(again.report.cached_tokens, 128) << "what lies behind the invocation is erased";
}

TEST_F(ActivatedEngine, SaltsAndSwitchedOffSharing) {
  std::vector<int32_t> prompt = invoked(12, 300, {200});
  auto engine = start();
  GenerationRequest base = ask("base", prompt);
  base.cache_salt = "one";
  generate(*engine, base);
  GenerationRequest judge = ask("judge", prompt);
  EXPECT_EQ(generate(*engine, judge).report.cached_tokens, 0);
  judge.cache_salt = "one";
  judge.sharing.mode = SharingRequest::Mode::kOff;  // of plans: the prefix is its own as well
  EXPECT_EQ(generate(*engine, judge).report.cached_tokens, 192);
}

TEST_F(ActivatedEngine, PromptLogprobsAreTheBasesInFrontOfTheInvocation) {
  std::vector<int32_t> prompt = invoked(13, 150, {100});
  auto engine = start();
  auto logprobs = [&](const std::string& model) {
    GenerationRequest request = ask(model, prompt);
    request.wants_prompt_logprobs = true;
    std::vector<float> values;
    for (const SampledToken& token : generate(*engine, request).prompt_logprobs.tokens)
      values.push_back(token.logprob);
    return values;
  };
  std::vector<float> base = logprobs("base");
  std::vector<float> judge = logprobs("judge");
  ASSERT_EQ(judge.size(), 149u);
  for (size_t i = 0; i < judge.size(); ++i)
    EXPECT_EQ(judge[i] == base[i], i < 100) << "row " << i;  // row 100 is the invocation's first
}

TEST_F(ActivatedEngine, AsksByNameOnlyForItsBase) {
  std::vector<int32_t> prompt = invoked(14, 300, {200});
  std::vector<int32_t> expected = reference("judge", prompt);
  auto engine = start();
  auto named = [&](const std::string& model, const std::string& sender, const std::string& plan) {
    GenerationRequest request = ask(model, prompt);
    request.sharing = {SharingRequest::Mode::kExplicit, sender, plan};
    return generate(*engine, request);
  };
  Outcome missing = named("judge", "base", "reuse");
  EXPECT_EQ(missing.tokens, expected);
  EXPECT_EQ(missing.report.fallback, "no cache of the sender");
  for (const char* plan : {"reuse", "auto"}) {
    Outcome outcome = named("judge", "base", plan);
    EXPECT_EQ(outcome.tokens, expected);
    EXPECT_EQ(outcome.report.plan, "reuse");
    EXPECT_EQ(outcome.report.reused_tokens, 192);
  }
  Outcome full = named("judge", "base", "full");
  EXPECT_EQ(full.tokens, expected);
  EXPECT_EQ(full.report.cached_tokens, 0);
  auto refusal = [&](const std::string& model, const std::string& sender, const std::string& plan) {
    Outcome outcome = named(model, sender, plan);
    return outcome.error ? outcome.error->message : "";
  };
  for (const char* plan : {"0,2,3", "reuse+10%", "0,0,0", "nonsense"})
    EXPECT_THAT(refusal("judge", "base", plan), HasSubstr("expected auto, reuse or full"));
  EXPECT_THAT(refusal("judge", "alpha", "auto"), HasSubstr("takes caches of \"base\" only"));
  EXPECT_THAT(refusal("judge", "judge", "auto"), HasSubstr("its caches are those of \"base\""));
  EXPECT_THAT(refusal("alpha", "judge", "reuse"), HasSubstr("its caches are those of \"base\""));
}

// A plan for pairs without a book is for plain ones.
TEST_F(ActivatedEngine, UnprofiledPlansAreNotForIt) {
  std::vector<int32_t> prompt = invoked(15, 300, {100});
  std::vector<int32_t> expected = reference("judge", prompt);
  FamilyFile file = family_.file();
  file.unprofiled = "reuse";
  Engine engine(family_.ops(), file, tiny_options());
  generate(engine, ask("alpha", prompt));
  generate(engine, ask("critic", prompt));
  GenerationRequest request = ask("judge", prompt);
  request.min_quality = 0.0;
  Outcome outcome = generate(engine, request);
  EXPECT_EQ(outcome.tokens, expected);
  EXPECT_EQ(outcome.report.sender, "base");
  EXPECT_EQ(outcome.report.reused_tokens, 64);
}

TEST_F(ActivatedEngine, StateNamesTheInvocation) {
  auto engine = start();
  std::map<std::string, std::vector<int32_t>> invocations;
  for (const VariantState& variant : engine->state().variants)
    invocations[variant.name] = variant.invocation;
  EXPECT_EQ(invocations["judge"], kInvocation);
  EXPECT_TRUE(invocations["alpha"].empty());
  EXPECT_TRUE(invocations["base"].empty());
}

// From disk, in a process of its own.
TEST_F(ActivatedEngine, CachesOutliveTheProcess) {
  std::vector<int32_t> prompt = invoked(16, 300, {200});
  std::vector<int32_t> expected = reference("judge", prompt);
  TemporaryFolder disk;
  EngineOptions options = tiny_options();
  options.store.disk_folder = disk.path();
  options.store.disk_bytes = uint64_t{64} << 20;
  auto engine = start(options);
  generate(*engine, ask("base", prompt));
  engine = nullptr;
  engine = start(options);
  Outcome outcome = generate(*engine, ask("judge", prompt));
  EXPECT_EQ(outcome.tokens, expected);
  EXPECT_EQ(outcome.report.cached_tokens, 192);
}

}  // namespace
}  // namespace droidspeak
