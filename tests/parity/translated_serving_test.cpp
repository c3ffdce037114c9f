// Translated plans through the whole engine: the same tokens as one prompt at a time with the same
// plan and maps, and as the slow reference.
#include <random>

#include <gtest/gtest.h>

#include "engine/engine_fixture.h"
#include "parity/random_maps.h"
#include "parity/reference.h"
#include "sharing/prompt_runner.h"

namespace droidspeak {
namespace {

constexpr int32_t kContext = 128;
constexpr int32_t kAnswer = 8;
constexpr int32_t kLookLayer = 1;  // of 4: default_look_layer()

// base -> alpha and base -> beta with random maps on K/V of every layer and E at 1 and 2.
class TranslatedServing : public testing::Test {
 protected:
  TranslatedServing() {
    std::mt19937 random(3);
    const ModelConfig& config = family_.models().config();
    for (int32_t layer = 0; layer < config.num_layers; ++layer)
      maps_.kv[layer] = random_map(random, 3, static_cast<size_t>(2 * config.kv_columns()));
    for (int32_t layer : {1, 2})
      maps_.inputs[layer] = random_map(random, 2, static_cast<size_t>(config.d_model));
    for (const char* receiver : {"alpha", "beta"})
      family_.add_book("base", receiver, {{{0, 2, 3}, 0.995}, {{0, 1, 4}, 0.999}}, maps_);
  }

  static std::vector<int32_t> prompt(uint32_t seed) {
    std::vector<int32_t> tokens = random_prompt(1000, kContext);
    std::vector<int32_t> rest = random_prompt(seed, 9 + static_cast<int32_t>(seed));
    tokens.insert(tokens.end(), rest.begin(), rest.end());
    return tokens;
  }

  static GenerationRequest request(const std::string& model,
                                   const std::vector<int32_t>& tokens,
                                   const std::string& plan) {
    return {.model = model,
            .prompt = tokens,
            .max_tokens = kAnswer,
            .sharing = {SharingRequest::Mode::kExplicit, "base", plan}};
  }

  std::unique_ptr<Engine> prepared_engine(int32_t num_blocks) {
    auto engine = std::make_unique<Engine>(family_.ops(), family_.file(), tiny_options(num_blocks));
    generate(*engine, {.model = "base", .prompt = prompt(0), .max_tokens = 1});
    return engine;
  }

  // One prompt at a time, without an engine.
  std::vector<int32_t> run_alone(const std::string& model,
                                 const std::vector<int32_t>& tokens,
                                 const ReusePlan& plan) {
    KvLayout layout = family_.models().config().kv_layout(DType::kF32);
    KvCache kv(family_.ops().device(), layout, 16 * layout.block_bytes());
    CacheStore store({}, clock_);
    PromptRunner runner(family_.ops(), kv, store);
    auto sender = family_.models().get("base");
    auto receiver = family_.models().get(model);
    runner.ensure_cached(*sender, std::span(tokens).first(kContext), {plan.b});
    auto translator = std::make_shared<Translator>(family_.ops(), maps_);
    BlockTable table;
    std::vector<int32_t> answer;
    auto take_best = [&](TensorView hidden) {
      Tensor logits(family_.ops().device(), DType::kF32, 1,
                    receiver->transformer->config().vocab_size);
      receiver->transformer->logits(hidden.row_range(hidden.rows - 1, hidden.rows), logits.view());
      answer.resize(answer.size() + 1);
      family_.ops().argmax(logits.view(), std::span(answer).last(1));
    };
    PromptJob with{receiver, sender, plan, translator, kContext};
    with.look_layer = kLookLayer;
    PromptTimings timings = runner.partial_prefill(
        tokens, with, table, [&](int32_t, TensorView hidden) { take_best(hidden); });
    EXPECT_EQ(timings.reused_tokens, kContext);
    while (answer.size() < kAnswer) {
      auto position = static_cast<int32_t>(tokens.size() + answer.size()) - 1;
      take_best(runner.decode(*receiver, answer.back(), position, table));
    }
    return answer;
  }

  // By the definition, in double precision.
  std::vector<int32_t> run_reference(const std::string& model,
                                     const std::vector<int32_t>& tokens,
                                     const ReusePlan& plan) const {
    ReferenceMaps maps = reference_maps(maps_);
    std::filesystem::path checkpoint = family_.folder() / "base";
    ReferenceModel sender(checkpoint, {});
    ReferenceModel receiver(checkpoint, family_.folder() / "adapters" / model);
    std::vector<int32_t> context(tokens.begin(), tokens.begin() + kContext);
    std::vector<int32_t> rest(tokens.begin() + kContext, tokens.end());
    ReferenceCache cache = mixed_cache(receiver, sender.read(context), context, plan, maps);
    if (plan.look_permille > 0) {
      Row mass = receiver.attention_mass(rest, cache, kLookLayer);
      auto count = static_cast<size_t>(plan.looked_at_tokens(kContext));
      receiver.read_again(context, looked_at_positions(mass, count), cache);
    }
    std::vector<int32_t> answer;
    while (answer.size() < kAnswer) {
      Row logits = receiver.suffix_logits(rest, cache).back();
      answer.push_back(
          static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
      rest.push_back(answer.back());
    }
    return answer;
  }

  TinyFamily family_;
  TranslationMaps maps_;
  SteadyClock clock_;
};

TEST_F(TranslatedServing, EqualsOnePromptAtATimeAndTheDefinition) {
  for (const char* model : {"alpha", "beta"}) {
    for (const char* name :
         {"0,2,3", "0,1,4", "1,2,3", "0,0,2", "0,2,3+20%", "reuse+7.5%", "1,2,3+100%"}) {
      SCOPED_TRACE(std::string(model) + " " + name);
      std::vector<int32_t> tokens = prompt(5);
      ReusePlan plan = parse_plan(name, 4);
      std::vector<int32_t> expected = run_reference(model, tokens, plan);
      EXPECT_EQ(run_alone(model, tokens, plan), expected);
      Outcome outcome = generate(*prepared_engine(64), request(model, tokens, name));
      EXPECT_EQ(outcome.tokens, expected);
      EXPECT_EQ(outcome.report.plan, name);
      EXPECT_TRUE(outcome.report.translated);
      EXPECT_EQ(outcome.report.reused_tokens, kContext);
      EXPECT_EQ(outcome.report.looked_at_tokens, plan.looked_at_tokens(kContext));
    }
  }
}

TEST_F(TranslatedServing, MapsChangeTheAnswer) {
  std::vector<int32_t> tokens = prompt(5);
  auto engine = prepared_engine(64);
  Outcome translated = generate(*engine, request("alpha", tokens, "0,2,3"));
  Outcome raw = generate(*engine, request("alpha", tokens, "0,2,3r"));
  EXPECT_FALSE(raw.report.translated);
  EXPECT_NE(translated.tokens, raw.tokens) << "the maps of this test are too weak";
}

TEST_F(TranslatedServing, OwnMixedCacheGivesTheAnswerOfTheFirstTime) {
  EngineOptions options = tiny_options();
  options.checks = EngineOptions::Checks::kNone;
  Engine engine(family_.ops(), family_.file(), options);
  std::vector<int32_t> tokens = random_prompt(1, 1920);
  generate(engine, {.model = "base", .prompt = tokens, .max_tokens = 1});
  std::vector<int32_t> rest = random_prompt(2, 150);
  tokens.insert(tokens.end(), rest.begin(), rest.end());
  GenerationRequest one{.model = "alpha", .prompt = tokens, .max_tokens = kAnswer};
  Outcome first = generate(engine, one);
  Outcome again = generate(engine, one);
  EXPECT_TRUE(first.report.translated);
  EXPECT_EQ(first.report.reused_tokens, 1920);
  EXPECT_EQ(again.report.reused_tokens, 1920);
  EXPECT_EQ(again.report.cached_tokens, 2048) << "with the blocks behind the context";
  EXPECT_TRUE(again.report.translated);
  EXPECT_EQ(again.report.recomputed_layers, 0);
  EXPECT_EQ(again.tokens, first.tokens);
}

// What was looked at for one question is nothing to the next one.
TEST_F(TranslatedServing, LookedAtTokensAreNeverStored) {
  EngineOptions options = tiny_options();
  options.checks = EngineOptions::Checks::kNone;
  auto ask = [&](Engine& engine, uint32_t seed, const std::string& plan) {
    std::vector<int32_t> tokens = random_prompt(1, 640);
    std::vector<int32_t> rest = random_prompt(seed, 150);
    tokens.insert(tokens.end(), rest.begin(), rest.end());
    return generate(engine, request("alpha", tokens, plan));
  };
  auto prepared = [&] {
    auto engine = std::make_unique<Engine>(family_.ops(), family_.file(), options);
    generate(*engine, {.model = "base", .prompt = random_prompt(1, 640), .max_tokens = 1});
    return engine;
  };
  for (const char* layers : {"0,2,3", "0,0,0"}) {
    SCOPED_TRACE(layers);
    const std::string looking = std::string(layers) + "+25%";
    auto engine = prepared();
    Outcome first = ask(*engine, 2, looking);
    EXPECT_EQ(first.report.looked_at_tokens, 160);
    Outcome other = ask(*engine, 3, looking);
    EXPECT_EQ(other.report.recomputed_layers, 0) << "the mixed cache of the first question";
    EXPECT_EQ(other.tokens, ask(*prepared(), 3, looking).tokens);
    EXPECT_EQ(ask(*engine, 4, layers).tokens, ask(*prepared(), 4, layers).tokens);
    Outcome again = ask(*engine, 2, looking);
    EXPECT_EQ(again.tokens, first.tokens);
    EXPECT_EQ(again.report.looked_at_tokens, 160);
    EXPECT_EQ(again.report.cached_tokens, 640) << "those behind were read again";
    EXPECT_GT(ask(*engine, 2, layers).report.cached_tokens, 640) << "as the scout left them";
  }
}

// The blocks behind the sender's are the scout's: they run again, after a preemption too.
TEST_F(TranslatedServing, PreemptedOnALongerMixedCacheEqualsAlone) {
  std::vector<GenerationRequest> requests;
  for (uint32_t i = 0; i < 4; ++i) {
    std::vector<int32_t> tokens = prompt(i);
    std::vector<int32_t> rest = random_prompt(50 + i, 2 * kBlockTokens);
    tokens.insert(tokens.end(), rest.begin(), rest.end());
    requests.push_back(request("alpha", tokens, i % 2 == 0 ? "reuse+30%" : "0,2,3+20%"));
    requests.back().max_tokens = 150;
  }
  std::vector<std::vector<int32_t>> alone;
  for (const GenerationRequest& one : requests)
    alone.push_back(generate(*prepared_engine(64), one).tokens);
  auto engine = prepared_engine(12);
  for (int round = 0; round < 2; ++round) {  // the second one finds what the first has stored
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (const GenerationRequest& one : requests)
      streams.push_back(std::move(engine->submit(one)).take_or_throw());
    for (size_t i = 0; i < streams.size(); ++i)
      EXPECT_EQ(collect(*streams[i]).tokens, alone[i]) << "round " << round << " request " << i;
  }
  EXPECT_GT(engine->metrics().preemptions, 0u);
}

TEST_F(TranslatedServing, BatchedAndPreemptedEqualsAlone) {
  const char* plans[] = {"0,2,3", "0,1,4+15%", "reuse+30%", "full", "0,0,2+10%r"};
  std::vector<GenerationRequest> requests;
  std::vector<std::vector<int32_t>> alone;
  for (uint32_t i = 0; i < 10; ++i) {
    GenerationRequest one = request(i % 2 == 0 ? "alpha" : "beta", prompt(i), plans[i % 5]);
    one.max_tokens = 150;  // grows by two blocks and more
    alone.push_back(generate(*prepared_engine(64), one).tokens);
    requests.push_back(std::move(one));
  }
  for (int32_t num_blocks : {64, 8}) {
    auto engine = prepared_engine(num_blocks);
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (const GenerationRequest& one : requests)
      streams.push_back(std::move(engine->submit(one)).take_or_throw());
    for (size_t i = 0; i < streams.size(); ++i)
      EXPECT_EQ(collect(*streams[i]).tokens, alone[i]) << "request " << i;
    EXPECT_EQ(engine->metrics().preemptions > 0, num_blocks == 8);
  }
}

}  // namespace
}  // namespace droidspeak
