// Weights whose activations overflow: finite numbers in the files, none in the logits.
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/engine_fixture.h"

namespace droidspeak {
namespace {

class OverflowingAdapter : public testing::Test {
 protected:
  OverflowingAdapter() {
    write_tiny_adapter(family_.folder() / "hot", {}, {.seed = 5, .strength = 1e30f});
  }

  std::unique_ptr<Engine> make_engine(EngineOptions options = tiny_options()) {
    auto engine = std::make_unique<Engine>(family_.ops(), family_.file(), options);
    EXPECT_TRUE(engine->load_adapter("hot", family_.folder() / "hot"));
    return engine;
  }

  static void expect_overflow(const Outcome& outcome) {
    EXPECT_TRUE(outcome.tokens.empty());
    EXPECT_FALSE(outcome.finished);
    ASSERT_TRUE(outcome.error);
    EXPECT_EQ(outcome.error->code, ErrorCode::kInternal);
    EXPECT_NE(outcome.error->message.find("\"hot\""), std::string::npos) << outcome.error->message;
    EXPECT_NE(outcome.error->message.find("not finite"), std::string::npos);
  }

  // One of every path from logits to an answer.
  static std::vector<GenerationRequest> all_requests() {
    GenerationRequest greedy{.model = "hot", .prompt = random_prompt(1, 200), .max_tokens = 4};
    GenerationRequest sampled = greedy;
    sampled.sampling = {.temperature = 1, .top_k = 5, .top_p = 0.9f, .min_p = 0.1f};
    GenerationRequest biased = greedy;
    biased.sampling.logit_bias = {{7, 100.0f}};
    GenerationRequest with_logprobs = greedy;
    with_logprobs.num_top_logprobs = 3;
    GenerationRequest scored = greedy;
    scored.max_tokens = 0;
    scored.num_top_logprobs = 0;
    scored.wants_prompt_logprobs = true;
    GenerationRequest only_read = greedy;
    only_read.max_tokens = 0;
    return {greedy, sampled, biased, with_logprobs, scored, only_read};
  }

  TinyFamily family_;
};

TEST_F(OverflowingAdapter, EndsItsRequestWithAnErrorOnEveryPath) {
  auto engine = make_engine();
  for (const GenerationRequest& request : all_requests())
    expect_overflow(generate(*engine, request));
  EXPECT_EQ(engine->metrics().requests_failed, 6u);
  EXPECT_TRUE(engine->is_healthy());
}

TEST_F(OverflowingAdapter, GivesNoEmbedding) {
  for (Pooling pooling : {Pooling::kMean, Pooling::kLast}) {
    FamilyFile file = family_.file();
    file.variants.push_back(
        {.name = "hot", .path = {}, .adapter = family_.folder() / "hot", .pooling = pooling});
    Engine engine(family_.ops(), file, tiny_options());
    Outcome outcome = generate(engine, {.model = "hot",
                                        .prompt = random_prompt(1, 200),
                                        .max_tokens = 0,
                                        .wants_embedding = true});
    expect_overflow(outcome);
    EXPECT_TRUE(outcome.embedding.values.empty());
  }
}

TEST_F(OverflowingAdapter, IsNoticedWithRoundedActivationsAndKeys) {
  for (DType kv_dtype : {DType::kF16, DType::kI8}) {
    EngineOptions options = tiny_options();
    options.family.precision = Precision::kFast;
    options.kv_dtype = kv_dtype;
    auto engine = make_engine(options);
    for (const GenerationRequest& request : all_requests())
      expect_overflow(generate(*engine, request));
  }
}

TEST_F(OverflowingAdapter, LeavesTheOthersOfItsBatchAlone) {
  std::vector<int32_t> prompt = random_prompt(2, 100);
  std::vector<int32_t> expected = family_.reference_greedy("alpha", prompt, 40);
  auto engine = make_engine();
  auto other = engine->submit({.model = "alpha", .prompt = prompt, .max_tokens = 40});
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (const GenerationRequest& request : all_requests())
    streams.push_back(std::move(engine->submit(request)).take_or_throw());
  for (auto& stream : streams) expect_overflow(collect(*stream));
  EXPECT_EQ(collect(**other).tokens, expected);
}

TEST_F(OverflowingAdapter, LeavesNothingInTheStore) {
  TemporaryFolder disk;
  EngineOptions options = tiny_options();
  options.store.disk_folder = disk.path();
  auto engine = make_engine(options);
  for (const GenerationRequest& request : all_requests()) {
    generate(*engine, request);
    EXPECT_EQ(engine->metrics().store.of(Tier::kHost).entries, 0u);
    EXPECT_EQ(engine->metrics().store.of(Tier::kDisk).entries, 0u);
  }
}

TEST_F(OverflowingAdapter, DoesNotTakeAnothersCacheWithIt) {
  auto engine = make_engine();
  GenerationRequest request{.model = "alpha", .prompt = random_prompt(1, 200), .max_tokens = 2};
  generate(*engine, request);
  for (const GenerationRequest& hot : all_requests()) generate(*engine, hot);
  EXPECT_EQ(generate(*engine, request).report.cached_tokens, 192);
}

}  // namespace
}  // namespace droidspeak
