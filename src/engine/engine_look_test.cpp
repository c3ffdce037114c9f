// Plans that read the tokens which the answer looks at, through the engine. That the tokens are the
// right ones is shown in tests/parity.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine_fixture.h"

namespace droidspeak {
namespace {

constexpr int32_t kContext = 1920;

std::vector<int32_t> question(uint32_t seed, int32_t num_tokens = 20, int32_t context = kContext) {
  std::vector<int32_t> tokens = random_prompt(1, context);
  std::vector<int32_t> rest = random_prompt(seed, num_tokens);
  tokens.insert(tokens.end(), rest.begin(), rest.end());
  return tokens;
}

GenerationRequest by_name(const std::vector<int32_t>& prompt, const std::string& plan) {
  return {.model = "alpha",
          .prompt = prompt,
          .max_tokens = 8,
          .sharing = {SharingRequest::Mode::kExplicit, "base", plan}};
}

class EngineLook : public testing::Test {
 protected:
  std::unique_ptr<Engine> engine_of(const FamilyFile& file, int32_t context = kContext) {
    EngineOptions options = tiny_options();
    options.checks = EngineOptions::Checks::kNone;
    auto engine = std::make_unique<Engine>(family_.ops(), file, options);
    generate(*engine, {.model = "base", .prompt = question(9, 1, context), .max_tokens = 1});
    return engine;
  }

  TinyFamily family_;
};

TEST_F(EngineLook, AutoTakesSuchAPlanOfABook) {
  family_.add_book("base", "alpha", {{{0, 0, 0, 100}, 0.995}, {{0, 1, 4}, 0.99}});
  auto engine = engine_of(family_.file());
  Outcome chosen = generate(*engine, {.model = "alpha", .prompt = question(2), .max_tokens = 8});
  EXPECT_EQ(chosen.report.plan, "reuse+10%");
  EXPECT_EQ(chosen.report.looked_at_tokens, 192);
  EXPECT_EQ(chosen.report.reused_tokens, kContext);
  EXPECT_EQ(chosen.report.recomputed_layers, 0);
  EXPECT_EQ(chosen.tokens, generate(*engine, by_name(question(2), "reuse+10%")).tokens);
  EXPECT_EQ(engine->metrics().looked_at_tokens, 2u * 192);
}

TEST_F(EngineLook, APairWithoutABookSharesIfTheFamilySaysHow) {
  FamilyFile file = family_.file();
  auto ask = [&](Engine& engine, std::optional<double> min_quality) {
    return generate(
        engine,
        {.model = "alpha", .prompt = question(2), .max_tokens = 8, .min_quality = min_quality});
  };
  auto closed = engine_of(file);
  EXPECT_EQ(ask(*closed, {}).report.plan, "full");
  EXPECT_FALSE(closed->submit(by_name(question(2), "reuse+10%")));
  file.unprofiled = "reuse+10%";
  auto open = engine_of(file);
  Outcome strict = ask(*open, 0.999);
  EXPECT_EQ(strict.report.plan, "full") << "nobody has measured how good it is";
  auto other = engine_of(file);
  Outcome shared = ask(*other, {});
  EXPECT_EQ(shared.report.sender, "base");
  EXPECT_EQ(shared.report.plan, "reuse+10%");
  EXPECT_FALSE(shared.report.translated);
  EXPECT_EQ(generate(*other, by_name(question(2), "reuse+10%")).tokens, shared.tokens);
  EXPECT_EQ(generate(*other, by_name(question(2), "reuse+25%")).report.looked_at_tokens, 480);
  auto refused = other->submit(by_name(question(2), "0,2,3+10%"));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, testing::HasSubstr("no plan book"));
}

TEST_F(EngineLook, WhereReadingIsCutDoesNotMatter) {
  family_.add_book("base", "alpha", {{{0, 2, 3}, 0.995}});
  // 192 tokens are looked at: cut among them, right behind them, and in what follows. The scout's
  // rows are cut, too.
  std::vector<std::vector<int32_t>> answers;
  for (int32_t chunk : {512, 64, 96, 193}) {
    EngineOptions options = tiny_options();
    options.chunk_tokens = chunk;
    Engine engine(family_.ops(), family_.file(), options);
    generate(engine, {.model = "base", .prompt = question(9, 1), .max_tokens = 1});
    Outcome outcome = generate(engine, by_name(question(2, 150), "0,2,3+10%"));
    EXPECT_EQ(outcome.report.looked_at_tokens, 192) << chunk;
    answers.push_back(outcome.tokens);
  }
  for (const auto& answer : answers) EXPECT_EQ(answer, answers.front());
}

TEST_F(EngineLook, APromptWithoutAnAnswerIsRead) {
  family_.add_book("base", "alpha", {{{0, 2, 3}, 0.995}});
  auto engine = engine_of(family_.file());
  GenerationRequest request = by_name(question(2), "reuse+10%");
  request.max_tokens = 0;
  Outcome outcome = generate(*engine, request);
  EXPECT_TRUE(outcome.tokens.empty());
  EXPECT_EQ(outcome.report.looked_at_tokens, 192);
  request.prompt = question(3, 2 * kBlockTokens + 5);
  generate(*engine, request);
  request.sharing.plan = "reuse";
  EXPECT_EQ(generate(*engine, request).report.cached_tokens, kContext + 2 * kBlockTokens)
      << "what its scout has left is stored";
}

TEST_F(EngineLook, TheSmallestContextsAndQuestionsWork) {
  family_.add_book("base", "alpha", {{{0, 2, 3}, 0.995}});
  auto engine = engine_of(family_.file(), kBlockTokens);
  std::vector<int32_t> answer_to_all;
  for (const char* plan : {"reuse+0.1%", "reuse+50%", "0,2,3+1.6%", "0,2,3+100%"}) {
    SCOPED_TRACE(plan);
    std::vector<int32_t> prompt = question(9, 1, kBlockTokens);
    Outcome outcome = generate(*engine, by_name(prompt, plan));
    EXPECT_EQ(outcome.tokens.size(), 8u);
    EXPECT_EQ(outcome.report.reused_tokens, kBlockTokens);
    EXPECT_EQ(outcome.report.looked_at_tokens, parse_plan(plan, 4).looked_at_tokens(kBlockTokens));
    if (std::string_view(plan).ends_with("+100%")) answer_to_all = outcome.tokens;
  }
  engine.reset();
  EXPECT_EQ(answer_to_all, family_.reference_greedy("alpha", question(9, 1, kBlockTokens), 8));
}

TEST_F(EngineLook, RefusesSharesThatAreNone) {
  family_.add_book("base", "alpha", {{{0, 2, 3}, 0.995}});
  auto engine = engine_of(family_.file(), kBlockTokens);
  for (const char* plan : {"reuse+0%", "reuse+100.1%", "0,2,3+-5%", "0,2,3+5", "full+5%",
                           "0,3,4+5%", "0,2,3+5%x", "reuse+nan%", "auto+5%"}) {
    auto stream = engine->submit(by_name(question(2, 9, kBlockTokens), plan));
    ASSERT_FALSE(stream) << plan;
    EXPECT_EQ(stream.error().code, ErrorCode::kInvalidArgument) << plan;
    EXPECT_THAT(stream.error().message, testing::HasSubstr(plan));
  }
}

}  // namespace
}  // namespace droidspeak
