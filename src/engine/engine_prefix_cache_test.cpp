// What a variant finds of its own prompts, through the whole engine.
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
  std::vector<int32_t> prompt = random_prompt(1, 600);
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
  EXPECT_EQ(cached, 3 * 576);
}

}  // namespace
}  // namespace droidspeak
