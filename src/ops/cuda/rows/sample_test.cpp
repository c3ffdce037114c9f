#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "ops/cuda/cuda_fixture.h"
#include "ops/cuda/rows/row_sampler.h"
#include "ops/sample_row.h"

namespace droidspeak::cuda {
namespace {

enum class Shape { kSmooth, kTied, kFlat, kPeaked, kWide };

class SampleTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped()) sampler_.emplace(static_cast<CudaDevice&>(*device_));
  }

  // Lists that belong to a row.
  struct Lists {
    std::vector<TokenBias> biases;
    std::vector<uint32_t> seen;
    std::vector<TokenCount> counts;
    std::vector<uint32_t> allowed;
  };

  Floats row_of(Shape shape, int64_t columns) {
    Floats row = cpu::random_floats(random_, columns, shape == Shape::kWide ? 300.0f : 2.5f);
    for (float& value : row) {
      if (shape == Shape::kTied) value = std::round(4 * value) / 4;
      if (shape == Shape::kFlat) value = 1.5f;
    }
    if (shape == Shape::kPeaked) row[row.size() / 3] = 40;
    return row;
  }

  std::vector<uint32_t> random_set(int64_t columns) {
    std::vector<uint32_t> words(static_cast<size_t>((columns + 31) / 32));
    for (uint32_t& word : words) word = static_cast<uint32_t>(random_()) & 0x11111111u;
    words[words.size() / 2] |= 1;
    return words;
  }

  Lists random_lists(int64_t columns) {
    Lists lists;
    lists.seen = random_set(columns);
    lists.allowed = random_set(columns);
    for (int32_t token = 1; token < columns; token += 1 + static_cast<int32_t>(random_() % 97)) {
      lists.biases.push_back({token, static_cast<float>(random_() % 9) - 4});
      lists.counts.push_back({token, static_cast<int32_t>(random_() % 5) + 1});
    }
    lists.biases.push_back({static_cast<int32_t>(columns), 100});  // outside
    return lists;
  }

  std::vector<SampledToken> run(const Floats& logits,
                                std::span<const RowSampling> rows,
                                int64_t num_rows) {
    DeviceFloats on_device(*device_, DType::kF32, logits, num_rows);
    std::vector<SampledToken> tokens(rows.size());
    sampler_->run(on_device.view(), rows, tokens);
    return tokens;
  }

  // What the device kept of a row and what the host keeps are the same tokens.
  void expect_same_candidates(Floats row,
                              const RowSampling& how,
                              const SampledToken& token,
                              const SampleResult& result) {
    std::vector<bool> expected(row.size());
    for (const auto& [value, candidate] : candidates_of(row, how))
      expected[static_cast<size_t>(candidate)] = true;
    for (size_t i = 0; i < row.size(); ++i) {  // scaled by now
      const bool is_kept =
          row[i] > result.cut_value ||
          (row[i] == result.cut_value && static_cast<int32_t>(i) <= result.cut_token);
      ASSERT_EQ(is_kept, expected[i]) << "token " << i << " with " << row[i];
    }
    EXPECT_TRUE(expected[static_cast<size_t>(token.token)]) << token.token;
  }

  double uniform() { return static_cast<double>(random_()) * 0x1p-32; }

  std::optional<RowSampler> sampler_;
};

const RowSampling kFilters[] = {
    {.temperature = 1},
    {.temperature = 0.7f, .top_k = 1},
    {.temperature = 0.7f, .top_k = 40},
    {.temperature = 1, .top_k = 3000},
    {.temperature = 0.05f, .top_k = 2000},
    {.temperature = 1, .top_p = 0},
    {.temperature = 1.3f, .top_p = 0.3f},
    {.temperature = 1, .top_p = 0.95f},
    {.temperature = 5, .top_p = 0.9f},
    {.temperature = 1, .min_p = 0.05f},
    {.temperature = 0.9f, .top_k = 50, .top_p = 0.9f, .min_p = 0.01f},
    {.temperature = 2, .top_k = 4000, .top_p = 0.7f, .min_p = 0.001f},
};

TEST_F(SampleTest, KeepsTheTokensThatTheHostKeeps) {
  for (int64_t columns : {5, 50, 4099, 128256}) {
    for (Shape shape : {Shape::kSmooth, Shape::kTied, Shape::kFlat, Shape::kPeaked, Shape::kWide}) {
      constexpr auto kRows = static_cast<int64_t>(std::size(kFilters));
      std::vector<RowSampling> rows(std::begin(kFilters), std::end(kFilters));
      std::vector<Floats> each;
      Floats all;
      for (int64_t i = 0; i < kRows; ++i) {
        rows[static_cast<size_t>(i)].row = i;
        rows[static_cast<size_t>(i)].uniform = uniform();
        each.push_back(row_of(shape, columns));
        all.insert(all.end(), each.back().begin(), each.back().end());
      }
      const std::vector<SampledToken> tokens = run(all, rows, kRows);
      for (size_t i = 0; i < rows.size(); ++i) {
        SCOPED_TRACE(testing::Message() << columns << " columns, shape " << static_cast<int>(shape)
                                        << ", filter " << i);
        expect_same_candidates(each[i], rows[i], tokens[i], sampler_->results()[i]);
      }
    }
  }
}

TEST_F(SampleTest, ChangesLogitsAsTheHostDoes) {
  for (int64_t columns : {77, 4099, 128256}) {
    SCOPED_TRACE(columns);
    std::vector<Lists> lists;
    std::vector<RowSampling> rows;
    Floats all;
    std::vector<Floats> each;
    for (int64_t i = 0; i < 24; ++i) lists.push_back(random_lists(columns));
    for (int64_t i = 0; i < 24; ++i) {
      const Lists& mine = lists[static_cast<size_t>(i)];
      RowSampling how{.row = i, .temperature = i % 3 == 0 ? 0 : 0.8f};
      how.uniform = how.is_greedy() ? 0 : uniform();
      if (i % 2 == 0) how.biases = mine.biases;
      if (i % 4 < 2) how.seen = mine.seen;
      how.repetition_penalty = i % 8 < 4 ? 1.3f : 0.7f;
      if (i % 5 < 3) how.counts = mine.counts;
      how.presence_penalty = 0.4f;
      how.frequency_penalty = 0.3f;
      if (i % 7 < 4) how.allowed = mine.allowed;
      how.num_top = static_cast<int32_t>(i) - 3 > 20 ? 20 : static_cast<int32_t>(i) - 3;
      if (i % 3 == 1) how.top_p = 0.8f;
      rows.push_back(how);
      each.push_back(row_of(i % 2 == 0 ? Shape::kSmooth : Shape::kTied, columns));
      all.insert(all.end(), each.back().begin(), each.back().end());
    }
    const std::vector<SampledToken> tokens = run(all, rows, 24);
    for (size_t i = 0; i < rows.size(); ++i) {
      SCOPED_TRACE(i);
      Floats row = each[i];
      SampledToken expected = sample_row(row, rows[i]);
      if (rows[i].is_greedy()) {
        EXPECT_EQ(tokens[i].token, expected.token);
      } else {
        expect_same_candidates(each[i], rows[i], tokens[i], sampler_->results()[i]);
      }
      ASSERT_EQ(tokens[i].top.size(), expected.top.size());
      for (size_t j = 0; j < expected.top.size(); ++j) {
        EXPECT_EQ(tokens[i].top[j].token, expected.top[j].token);
        EXPECT_NEAR(tokens[i].top[j].logprob, expected.top[j].logprob, 1e-5);
      }
      if (rows[i].num_top < 0) continue;
      EXPECT_NEAR(tokens[i].logprob, token_logprob(each[i], tokens[i].token), 1e-5);
    }
  }
}

// Pearson's statistic against the host's probabilities.
TEST_F(SampleTest, DrawsWithTheProbabilitiesOfTheHost) {
  constexpr int64_t kColumns = 300;
  constexpr int64_t kRows = 256;
  constexpr int kBatches = 120;
  const Floats row = row_of(Shape::kSmooth, kColumns);
  Floats all;
  for (int64_t i = 0; i < kRows; ++i) all.insert(all.end(), row.begin(), row.end());
  for (const RowSampling& filter : kFilters) {
    Floats copy = row;
    std::map<int32_t, double> probabilities;
    double total = 0;
    for (const auto& [value, token] : candidates_of(copy, filter))
      total += probabilities[token] = std::exp(static_cast<double>(value));
    std::map<int32_t, int> counts;
    std::vector<RowSampling> rows(kRows, filter);
    for (int batch = 0; batch < kBatches; ++batch) {
      for (int64_t i = 0; i < kRows; ++i) {
        rows[static_cast<size_t>(i)].row = i;
        rows[static_cast<size_t>(i)].uniform = uniform();
      }
      for (const SampledToken& token : run(all, rows, kRows)) ++counts[token.token];
    }
    double statistic = 0;
    double rest_expected = 0;
    double rest_counted = 0;
    int degrees = 0;
    auto add = [&](double counted, double expected) {
      statistic += (counted - expected) * (counted - expected) / expected;
      ++degrees;
    };
    for (const auto& [token, weight] : probabilities) {
      const double expected = weight / total * kRows * kBatches;
      if (expected >= 10) {
        add(counts[token], expected);
      } else {
        rest_expected += expected;
        rest_counted += counts[token];
      }
    }
    if (rest_expected >= 5) {
      add(rest_counted, rest_expected);
    } else {
      EXPECT_LE(rest_counted, 25);
    }
    for (const auto& [token, count] : counts) EXPECT_TRUE(probabilities.contains(token)) << count;
    // Its mean is the number of degrees of freedom, its variance twice that.
    EXPECT_LE(statistic, degrees + 5 * std::sqrt(2.0 * degrees)) << degrees;
  }
}

TEST_F(SampleTest, ATokenDependsOnItsRowAlone) {
  constexpr int64_t kColumns = 4097;  // rows begin at any alignment
  constexpr int64_t kRows = 40;
  std::vector<Floats> each;
  std::vector<RowSampling> alone;
  Floats all;
  for (int64_t i = 0; i < kRows; ++i) {
    each.push_back(row_of(i % 2 == 0 ? Shape::kSmooth : Shape::kTied, kColumns));
    all.insert(all.end(), each.back().begin(), each.back().end());
    RowSampling how = kFilters[static_cast<size_t>(i) % std::size(kFilters)];
    how.num_top = static_cast<int32_t>(i % 6) - 1;
    how.uniform = uniform();
    alone.push_back(how);
  }
  std::vector<RowSampling> together = alone;
  for (int64_t i = 0; i < kRows; ++i) together[static_cast<size_t>(i)].row = i;
  std::reverse(together.begin(), together.end());
  const std::vector<SampledToken> tokens = run(all, together, kRows);
  for (size_t i = 0; i < alone.size(); ++i) {
    SCOPED_TRACE(i);
    const SampledToken expected = run(each[i], {&alone[i], 1}, 1).front();
    const SampledToken& token = tokens[alone.size() - 1 - i];
    EXPECT_EQ(token.token, expected.token);
    EXPECT_EQ(token.logprob, expected.logprob);
    ASSERT_EQ(token.top.size(), expected.top.size());
    for (size_t j = 0; j < token.top.size(); ++j)
      EXPECT_EQ(token.top[j].token, expected.top[j].token);
  }
}

TEST_F(SampleTest, NoticesWhatIsNotFinite) {
  constexpr int64_t kColumns = 1000;
  Floats all = row_of(Shape::kSmooth, 4 * kColumns);
  all[kColumns + 999] = std::numeric_limits<float>::infinity();
  all[2 * kColumns] = std::numeric_limits<float>::quiet_NaN();
  std::vector<RowSampling> rows;
  for (int64_t i = 0; i < 4; ++i)
    rows.push_back({.row = i, .temperature = 1, .num_top = 2, .uniform = 0.5});
  const std::vector<SampledToken> tokens = run(all, rows, 4);
  EXPECT_GE(tokens[0].token, 0);
  EXPECT_EQ(tokens[1].token, -1);
  EXPECT_EQ(tokens[2].token, -1);
  EXPECT_GE(tokens[3].token, 0);
}

// By way of the operation: greedy rows beside others, rows in any order, what the kernel leaves to
// the host.
TEST_F(SampleTest, TheOperationTakesAnyMixture) {
  constexpr int64_t kColumns = 999;
  const Floats all = row_of(Shape::kTied, 3 * kColumns);
  auto reference = [&](const RowSampling& how) {
    const auto begin = all.begin() + how.row * kColumns;
    Floats row(begin, begin + kColumns);
    return sample_row(row, how);
  };
  const std::vector<std::vector<RowSampling>> batches = {
      {{.row = 2}, {.row = 0}},
      {{.row = 1}, {.row = 0, .temperature = 1, .top_k = 1}, {.row = 2, .num_top = 3}},
      {{.row = 1, .num_top = 30}, {.row = 2, .temperature = 2, .uniform = 0.3}}};
  for (const std::vector<RowSampling>& rows : batches) {
    DeviceFloats logits(*device_, DType::kF32, all, 3);
    std::vector<SampledToken> tokens(rows.size());
    fast_->sample(logits.view(), rows, tokens);
    for (size_t i = 0; i < rows.size(); ++i) {
      const SampledToken expected = reference(rows[i]);
      EXPECT_EQ(tokens[i].token, expected.token);
      ASSERT_EQ(tokens[i].top.size(), expected.top.size());
      for (size_t j = 0; j < expected.top.size(); ++j)
        EXPECT_EQ(tokens[i].top[j].token, expected.top[j].token);
    }
  }
}

}  // namespace
}  // namespace droidspeak::cuda
