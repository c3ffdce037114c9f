#include "profiler/divergence.h"

#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "ops/ops.h"

namespace droidspeak {
namespace {

constexpr int32_t kVocabulary = 5000;
constexpr int64_t kRows = 12;

std::vector<float> random_logits(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> values(kRows * kVocabulary);
  for (float& value : values) value = normal(random);
  return values;
}

Divergence by_ops(std::vector<float>& reference, std::vector<float>& logits) {
  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<Ops> ops = make_cpu_ops(*device, 1);
  std::vector<RowDivergence> rows(kRows);
  ops->divergence({reference.data(), DType::kF32, kRows, kVocabulary, kVocabulary},
                  {logits.data(), DType::kF32, kRows, kVocabulary, kVocabulary}, rows.data());
  return summarise(rows);
}

TEST(Divergence, OnTheDeviceEqualsTheReference) {
  std::vector<float> reference = random_logits(1);
  std::vector<float> logits = reference;
  std::vector<float> noise = random_logits(2);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] += 0.2f * noise[i];
  Divergence expected = ReferenceDistributions(reference, kVocabulary).compare(logits);
  Divergence actual = by_ops(reference, logits);
  EXPECT_NEAR(actual.kl, expected.kl, 1e-5 * expected.kl);
  EXPECT_EQ(actual.agreement, expected.agreement);
  EXPECT_EQ(actual.first_difference, expected.first_difference);
  EXPECT_EQ(actual.other_token, expected.other_token);
}

TEST(Divergence, FromOneSureTokenIsItsNegativeLogLikelihood) {
  std::vector<float> logits = random_logits(3);
  std::vector<float> sure(logits.size(), -1e4f);
  double expected = 0;
  for (size_t row = 0; row < kRows; ++row) {
    const auto token = static_cast<int32_t>(397 * row);
    sure[row * kVocabulary + static_cast<size_t>(token)] = 0;
    expected +=
        negative_log_likelihood(std::span(logits).subspan(row * kVocabulary, kVocabulary), token);
  }
  EXPECT_NEAR(by_ops(sure, logits).kl, expected / kRows, 1e-5);
}

TEST(Divergence, LogitsThatAreNotFiniteAreMerelyBad) {
  std::vector<float> reference = random_logits(1);
  std::vector<float> logits = reference;
  logits[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NEAR(by_ops(reference, logits).kl, 50.0 / kRows, 1e-6);
}

}  // namespace
}  // namespace droidspeak
