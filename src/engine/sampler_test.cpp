#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

namespace droidspeak {
namespace {

std::vector<float> random_logits(uint32_t seed, size_t size) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(size);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

std::vector<double> softmax(const std::vector<double>& logits) {
  double highest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> probabilities;
  for (double logit : logits) probabilities.push_back(std::exp(logit - highest));
  double sum = std::accumulate(probabilities.begin(), probabilities.end(), 0.0);
  for (double& probability : probabilities) probability /= sum;
  return probabilities;
}

// Masks one after the other over the whole vocabulary, straight from the definitions.
std::vector<double> reference_distribution(const std::vector<float>& logits,
                                           const SamplingOptions& options) {
  const double masked = -std::numeric_limits<double>::infinity();
  std::vector<double> scaled(logits.begin(), logits.end());
  for (double& logit : scaled) logit /= options.temperature;
  std::vector<double> probabilities = softmax(scaled);
  double best = *std::max_element(probabilities.begin(), probabilities.end());
  for (size_t i = 0; i < scaled.size(); ++i) {
    if (probabilities[i] < options.min_p * best) scaled[i] = masked;
  }
  std::vector<size_t> order(scaled.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return scaled[a] > scaled[b]; });
  for (size_t rank = 0; rank < order.size(); ++rank) {
    if (options.top_k > 0 && rank >= static_cast<size_t>(options.top_k))
      scaled[order[rank]] = masked;
  }
  probabilities = softmax(scaled);
  double before = 0;
  for (size_t token : order) {
    if (before >= options.top_p) scaled[token] = masked;
    before += probabilities[token];
  }
  return softmax(scaled);
}

void expect_distribution(const SamplingOptions& options, uint32_t seed) {
  std::vector<float> logits = random_logits(seed, 50);
  std::vector<double> expected = reference_distribution(logits, options);
  std::vector<double> counts(logits.size());
  Sampler sampler(options, {}, 50);
  const int draws = 20000;
  for (int i = 0; i < draws; ++i) {
    std::vector<float> row = logits;
    ++counts[static_cast<size_t>(sampler.sample(row, -1).token)];
  }
  for (size_t i = 0; i < counts.size(); ++i) {
    if (expected[i] == 0) {
      EXPECT_EQ(counts[i], 0) << "token " << i << " is outside the kept set";
      continue;
    }
    double deviation = std::sqrt(draws * expected[i] * (1 - expected[i])) + 1;
    EXPECT_NEAR(counts[i], draws * expected[i], 5 * deviation) << "token " << i;
  }
}

TEST(Sampler, DrawsOnlyWhatIsAllowed) {
  for (float temperature : {0.0f, 1.0f}) {
    SamplingOptions options;
    options.temperature = temperature;
    options.logit_bias = std::map<int32_t, float>{{3, -100.0f}, {40, 100.0f}};
    options.repetition_penalty = 1.5f;
    Sampler sampler(options, {}, 50);
    std::vector<uint32_t> allowed = {0b1010'1000, 0};  // 3, 5, 7
    for (uint32_t seed = 0; seed < 200; ++seed) {
      std::vector<float> logits = random_logits(seed, 50);
      std::vector<float> raw = logits;
      SampledToken token = sampler.sample(logits, 2, allowed);
      EXPECT_TRUE(token.token == 5 || token.token == 7) << token.token;
      EXPECT_NEAR(token.logprob, token_logprob(raw, token.token), 1e-5);
    }
  }
}

TEST(Sampler, LogprobsDoNotDependOnTheTemperature) {
  for (float temperature : {0.0f, 0.5f, 1.0f, 2.0f}) {
    SamplingOptions options;
    options.temperature = temperature;
    Sampler sampler(options, {}, 50);
    std::vector<float> logits = random_logits(11, 50);
    std::vector<float> raw = logits;
    SampledToken token = sampler.sample(logits, 0);
    EXPECT_NEAR(token.logprob, token_logprob(raw, token.token), 1e-5) << temperature;
  }
}

TEST(Sampler, DrawsFromTheReferenceDistribution) {
  uint32_t seed = 0;
  for (float temperature : {0.7f, 1.0f, 1.8f}) {
    expect_distribution({.temperature = temperature, .seed = 7}, ++seed);
    expect_distribution({.temperature = temperature, .top_k = 5, .seed = 7}, ++seed);
    expect_distribution({.temperature = temperature, .top_p = 0.6f, .seed = 7}, ++seed);
    expect_distribution({.temperature = temperature, .min_p = 0.1f, .seed = 7}, ++seed);
    expect_distribution(
        {.temperature = temperature, .top_k = 12, .top_p = 0.8f, .min_p = 0.02f, .seed = 7},
        ++seed);
  }
}

TEST(Sampler, KeepsTheBestTokenWhateverTheFilters) {
  std::vector<float> logits = {0, 3, 1, 3};
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<float> row = logits;
    Sampler sampler({.temperature = 2, .top_p = 1e-9f, .seed = seed}, {}, 4);
    EXPECT_EQ(sampler.sample(row, -1).token, 1) << "the lower id wins a tie";
    row = logits;
    Sampler none({.temperature = 2, .top_p = 0, .seed = seed}, {}, 4);
    EXPECT_EQ(none.sample(row, -1).token, 1);
    row = logits;
    Sampler single({.temperature = 2, .top_k = 1, .seed = seed}, {}, 4);
    EXPECT_EQ(single.sample(row, -1).token, 1);
  }
}

TEST(Sampler, SameSeedGivesTheSameTokens) {
  auto draw = [](uint64_t seed) {
    Sampler sampler({.temperature = 1, .top_k = 20, .top_p = 0.95f, .seed = seed}, {}, 50);
    std::vector<int32_t> tokens;
    for (uint32_t i = 0; i < 30; ++i) {
      std::vector<float> row = random_logits(i, 50);
      tokens.push_back(sampler.sample(row, -1).token);
    }
    return tokens;
  };
  EXPECT_EQ(draw(3), draw(3));
  EXPECT_NE(draw(3), draw(4));
}

TEST(Sampler, LogprobsAreOfTheRawDistribution) {
  std::vector<float> logits = random_logits(9, 50);
  std::vector<double> raw(logits.begin(), logits.end());
  std::vector<double> probabilities = softmax(raw);
  Sampler sampler(
      {.temperature = 0.3f, .top_k = 3, .frequency_penalty = 1, .logit_bias = {{17, 50.0f}}}, {},
      50);
  std::vector<float> row = logits;
  SampledToken token = sampler.sample(row, 4);
  EXPECT_EQ(token.token, 17);
  EXPECT_NEAR(token.logprob, std::log(probabilities[17]), 1e-4);
  ASSERT_EQ(token.top.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(token.top[i].logprob,
                std::log(probabilities[static_cast<size_t>(token.top[i].token)]), 1e-4);
    if (i > 0) {
      EXPECT_LE(token.top[i].logprob, token.top[i - 1].logprob);
    }
  }
  EXPECT_NEAR(token_logprob(logits, 17), token.logprob, 1e-6);
}

// The logits that greedy choice sees, by the formulas of the OpenAI and CTRL papers.
int32_t reference_greedy(std::vector<float> logits,
                         const SamplingOptions& options,
                         const std::vector<int32_t>& prompt,
                         const std::vector<int32_t>& output) {
  for (auto [token, bias] : *options.logit_bias) logits[static_cast<size_t>(token)] += bias;
  for (size_t i = 0; i < logits.size(); ++i) {
    auto id = static_cast<int32_t>(i);
    auto in_output = static_cast<float>(std::count(output.begin(), output.end(), id));
    if (in_output > 0 || std::count(prompt.begin(), prompt.end(), id) > 0) {
      logits[i] *= logits[i] > 0 ? 1 / options.repetition_penalty : options.repetition_penalty;
    }
    logits[i] -=
        options.frequency_penalty * in_output + (in_output > 0 ? options.presence_penalty : 0);
  }
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

TEST(Sampler, PenaltiesFollowTheReference) {
  const std::vector<int32_t> prompt = {1, 4, 4, 9, 40, 69};
  const SamplingOptions cases[] = {{.repetition_penalty = 1.5f},
                                   {.presence_penalty = 0.9f},
                                   {.frequency_penalty = 0.4f},
                                   {.repetition_penalty = 0.8f,
                                    .presence_penalty = -0.3f,
                                    .frequency_penalty = 0.2f,
                                    .logit_bias = {{3, 1.0f}, {5, -100.0f}}}};
  for (const SamplingOptions& options : cases) {
    Sampler sampler(options, prompt, 70);
    EXPECT_FALSE(sampler.is_plain_greedy());
    std::vector<int32_t> output;
    std::vector<float> logits = random_logits(31, 70);
    for (int step = 0; step < 40; ++step) {
      std::vector<float> row = logits;
      int32_t expected = reference_greedy(logits, options, prompt, output);
      output.push_back(sampler.sample(row, -1).token);
      ASSERT_EQ(output.back(), expected) << "step " << step;
    }
  }
}

TEST(Sampler, HasABitForEveryTokenThatWasSeen) {
  for (int32_t vocab_size : {1, 32, 33, 64, 65}) {
    Sampler sampler({.repetition_penalty = 1.5f}, std::vector<int32_t>{vocab_size - 1}, vocab_size);
    std::span<const uint32_t> seen = sampler.next(0, -1, {}).seen;
    ASSERT_EQ(std::ssize(seen), vocab_size / 32 + (vocab_size % 32 > 0 ? 1 : 0)) << vocab_size;
    EXPECT_EQ(seen.back(), uint32_t{1} << ((vocab_size - 1) % 32)) << vocab_size;
  }
}

TEST(Sampler, PlainGreedyIsArgmaxWithTheFirstOnTies) {
  Sampler sampler({}, {}, 4);
  EXPECT_TRUE(sampler.is_plain_greedy());
  std::vector<float> logits = {1, 2, 2, 0};
  EXPECT_EQ(sampler.sample(logits, -1).token, 1);
}

TEST(TopLogprobs, GivesAllTokensWhenAskedForMore) {
  std::vector<float> logits = {0, 1};
  EXPECT_EQ(top_logprobs(logits, 20).size(), 2u);
  EXPECT_TRUE(top_logprobs(logits, 0).empty());
}

}  // namespace
}  // namespace droidspeak
