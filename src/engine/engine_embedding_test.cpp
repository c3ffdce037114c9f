// Embeddings beside everything else that the engine does; what they are: tests/parity.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/embedding_pool.h"
#include "engine/engine.h"
#include "engine/engine_fixture.h"

namespace droidspeak {
namespace {

using testing::HasSubstr;

class EngineEmbedding : public testing::Test {
 protected:
  EngineEmbedding() : file_(family_.file()) { file_.base.pooling = Pooling::kMean; }

  static GenerationRequest wanted(const std::vector<int32_t>& prompt) {
    return {.model = "base", .prompt = prompt, .max_tokens = 0, .wants_embedding = true};
  }

  TinyFamily family_;
  FamilyFile file_;
};

TEST_F(EngineEmbedding, DoesNotDependOnTheBatchNorOnCachesNorOnPreemption) {
  std::vector<std::vector<float>> alone;
  {
    Engine engine(family_.ops(), file_, tiny_options());
    for (uint32_t i = 0; i < 4; ++i)
      alone.push_back(generate(engine, wanted(random_prompt(i, 40 + 30 * static_cast<int32_t>(i))))
                          .embedding.values);
  }
  Engine engine(family_.ops(), file_, tiny_options(10));
  std::vector<std::shared_ptr<TokenStream>> answers;
  std::vector<std::shared_ptr<TokenStream>> embeddings;
  for (uint32_t i = 0; i < 4; ++i) {
    std::vector<int32_t> prompt = random_prompt(i, 40 + 30 * static_cast<int32_t>(i));
    generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 1});  // now it is cached
    answers.push_back(
        std::move(engine.submit({.model = "alpha", .prompt = prompt, .max_tokens = 60}))
            .take_or_throw());
    embeddings.push_back(std::move(engine.submit(wanted(prompt))).take_or_throw());
  }
  for (size_t i = 0; i < embeddings.size(); ++i) {
    Outcome outcome = collect(*embeddings[i]);
    EXPECT_EQ(outcome.embedding.values, alone[i]);
    EXPECT_EQ(outcome.report.cached_tokens, 0);
    EXPECT_TRUE(outcome.tokens.empty());
  }
  for (auto& answer : answers) EXPECT_EQ(collect(*answer).tokens.size(), 60u);
}

TEST_F(EngineEmbedding, StoresNothing) {
  Engine engine(family_.ops(), file_, tiny_options());
  std::vector<int32_t> prompt = random_prompt(1, 100);
  generate(engine, wanted(prompt));
  Outcome answer = generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 1});
  EXPECT_EQ(answer.report.cached_tokens, 0);
  EXPECT_EQ(engine.metrics().ttft_seconds.count, 1u);
}

TEST_F(EngineEmbedding, NeedsPoolingAndNoAnswer) {
  Engine engine(family_.ops(), file_, tiny_options());
  GenerationRequest request = wanted({1, 2});
  request.model = "alpha";
  EXPECT_THAT(generate(engine, request).error->message, HasSubstr("declares no pooling"));
  request = wanted({1, 2});
  request.max_tokens = 3;
  EXPECT_THAT(generate(engine, request).error->message, HasSubstr("max_tokens is 3"));
}

TEST_F(EngineEmbedding, PoolingStaysWithTheFolderThatTheFamilyNames) {
  file_.variants.front().pooling = Pooling::kLast;
  const FamilyFile::Member& alpha = file_.variants.front();
  std::filesystem::path other = family_.folder() / "other";
  write_tiny_adapter(other, {}, {.seed = 999});
  Engine engine(family_.ops(), file_, tiny_options());
  GenerationRequest request = wanted({1, 2, 3});
  request.model = alpha.name;
  EXPECT_FALSE(generate(engine, request).error);
  ASSERT_TRUE(engine.load_adapter(alpha.name, other));
  EXPECT_TRUE(generate(engine, request).error);
  ASSERT_TRUE(engine.load_adapter(alpha.name, alpha.adapter));
  EXPECT_FALSE(generate(engine, request).error);
}

TEST(EmbeddingPool, ScalesToLengthOneAndNoticesWhatIsNotFinite) {
  EmbeddingPool pool;
  EXPECT_TRUE(pool.result().values.empty());
  pool.add(std::vector<float>{3, 0});
  pool.add(std::vector<float>{0, 4});
  EXPECT_THAT(pool.result().values, testing::ElementsAre(0.6f, 0.8f));
  EXPECT_TRUE(pool.is_finite());
  pool.add(std::vector<float>{std::numeric_limits<float>::infinity(), 0});
  EXPECT_FALSE(pool.is_finite());
  EmbeddingPool zeros;
  zeros.add(std::vector<float>{0, 0});
  EXPECT_THAT(zeros.result().values, testing::ElementsAre(0.0f, 0.0f));
}

TEST(EngineMetrics, AreCountedByVariantForAsLongAsItIsLoaded) {
  TinyFamily family;
  family.add_book("base", "alpha", {{{0, 2, 3}, 0.999}});
  Engine engine(family.ops(), family.file(), tiny_options());
  std::vector<int32_t> prompt = random_prompt(5, 100);
  generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 2});
  generate(engine, {.model = "alpha", .prompt = prompt, .max_tokens = 3});
  EngineMetrics metrics = engine.metrics();
  const RequestCounters& base = metrics.variants.at("base");
  const RequestCounters& alpha = metrics.variants.at("alpha");
  EXPECT_EQ(base.prompt_tokens, 100u);
  EXPECT_EQ(base.generation_tokens, 2u);
  EXPECT_EQ(alpha.generation_tokens, 3u);
  EXPECT_EQ(alpha.ttft_seconds.count, 1u);
  EXPECT_EQ(alpha.requests_finished_length, 1u);
  EXPECT_GT(alpha.prefix_cache_hits, 0u);
  EXPECT_EQ(metrics.generation_tokens, 5u);
  EXPECT_EQ(metrics.pairs.size(), 1u);
  ASSERT_TRUE(engine.unload_adapter("alpha"));
  metrics = engine.metrics();
  EXPECT_FALSE(metrics.variants.contains("alpha"));
  EXPECT_TRUE(metrics.pairs.empty());
  EXPECT_EQ(metrics.generation_tokens, 5u);
  ASSERT_TRUE(engine.load_adapter("alpha", family.folder() / "adapters/alpha"));
  generate(engine, {.model = "alpha", .prompt = prompt, .max_tokens = 1});
  EXPECT_EQ(engine.metrics().variants.at("alpha").generation_tokens, 1u);
}

}  // namespace
}  // namespace droidspeak
