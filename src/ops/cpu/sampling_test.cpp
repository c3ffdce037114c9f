#include <algorithm>
#include <limits>

#include <gtest/gtest.h>

#include "ops/cpu/reference.h"
#include "ops/ops.h"
#include "ops/sample_row.h"

namespace droidspeak::cpu {
namespace {

class SamplingTest : public testing::Test {
 protected:
  static constexpr int64_t kColumns = 301;

  SamplingTest() : logits_(random_floats(random_, 4 * kColumns, 2)) {}

  TensorView view() { return {logits_.data(), DType::kF32, 4, kColumns, kColumns}; }

  std::vector<SampledToken> sample(std::span<const RowSampling> rows) {
    std::vector<SampledToken> tokens(rows.size());
    ops_->sample(view(), rows, tokens);
    return tokens;
  }

  SampledToken reference(const RowSampling& how) {
    const auto begin = logits_.begin() + how.row * kColumns;
    Floats row(begin, begin + kColumns);
    return sample_row(row, how);
  }

  std::mt19937 random_{5};
  Floats logits_;
  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Ops> ops_ = make_cpu_ops(*device_, 2);
};

TEST_F(SamplingTest, TakesRowsInAnyOrder) {
  const std::vector<RowSampling> rows = {
      {.row = 2, .temperature = 1, .top_k = 20, .num_top = 3, .uniform = 0.7},
      {.row = 0},
      {.row = 1, .num_top = 0},
      {.row = 3, .temperature = 0.5f, .top_p = 0.9f, .uniform = 0.2}};
  const std::vector<SampledToken> tokens = sample(rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    const SampledToken expected = reference(rows[i]);
    EXPECT_EQ(tokens[i].token, expected.token);
    EXPECT_EQ(tokens[i].logprob, expected.logprob);
    ASSERT_EQ(tokens[i].top.size(), expected.top.size());
    for (size_t j = 0; j < expected.top.size(); ++j)
      EXPECT_EQ(tokens[i].top[j].token, expected.top[j].token);
  }
}

TEST_F(SamplingTest, NoticesWhatIsNotFinite) {
  logits_[kColumns + 7] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<RowSampling> rows = {{.row = 0, .temperature = 1, .uniform = 0.5},
                                         {.row = 1, .temperature = 1, .uniform = 0.5},
                                         {.row = 2}};
  const std::vector<SampledToken> tokens = sample(rows);
  EXPECT_GE(tokens[0].token, 0);
  EXPECT_EQ(tokens[1].token, -1);
  EXPECT_GE(tokens[2].token, 0);
}

// The candidates are what is left after the last filter, as the definitions say.
TEST(CandidatesOf, KeepsTiesByTokenAndTheBestOneAlways) {
  auto tokens = [](std::vector<float> logits, const RowSampling& how) {
    std::vector<int32_t> kept;
    for (const auto& [value, token] : candidates_of(logits, how)) kept.push_back(token);
    std::sort(kept.begin(), kept.end());
    return kept;
  };
  const std::vector<float> logits = {0, 3, 1, 3, 3, 1};
  using Tokens = std::vector<int32_t>;
  EXPECT_EQ(tokens(logits, {.temperature = 1}), (Tokens{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(tokens(logits, {.temperature = 1, .top_k = 2}), (Tokens{1, 3}));
  EXPECT_EQ(tokens(logits, {.temperature = 1, .top_k = 4}), (Tokens{1, 2, 3, 4}));
  EXPECT_EQ(tokens(logits, {.temperature = 1, .top_p = 0}), (Tokens{1}));
  EXPECT_EQ(tokens(logits, {.temperature = 1, .top_p = 0.5f}), (Tokens{1, 3}));
  EXPECT_EQ(tokens(logits, {.temperature = 1, .min_p = 0.1f}), (Tokens{1, 2, 3, 4, 5}));
  EXPECT_EQ(tokens(logits, {.temperature = 1, .min_p = 2}), (Tokens{1, 3, 4}));
  const std::vector<uint32_t> allowed = {0b100101};
  EXPECT_EQ(tokens(logits, {.temperature = 1, .top_k = 2, .allowed = allowed}), (Tokens{2, 5}));
}

}  // namespace
}  // namespace droidspeak::cpu
