#include "engine/request.h"

#include <algorithm>
#include <thread>

#include <gtest/gtest.h>

#include "engine/metrics.h"

namespace droidspeak {
namespace {

using std::chrono::milliseconds;

TEST(TokenStream, GivesItemsInOrderAndNothingWhenTheTimeRunsOut) {
  TokenStream stream;
  stream.push(SampledToken{.token = 1});
  stream.push(SampledToken{.token = 2});
  EXPECT_EQ(std::get<SampledToken>(*stream.next(milliseconds(0))).token, 1);
  EXPECT_EQ(std::get<SampledToken>(*stream.next(milliseconds(0))).token, 2);
  EXPECT_FALSE(stream.next(milliseconds(1)));
  stream.push(Finished{});
  EXPECT_TRUE(std::holds_alternative<Finished>(*stream.next(milliseconds(0))));
}

TEST(TokenStream, WakesAWaitingReader) {
  TokenStream stream;
  std::thread writer([&] {
    for (int32_t i = 0; i < 1000; ++i) stream.push(SampledToken{.token = i});
  });
  for (int32_t i = 0; i < 1000; ++i) {
    auto item = stream.next(milliseconds(10000));
    ASSERT_TRUE(item);
    ASSERT_EQ(std::get<SampledToken>(*item).token, i);
  }
  writer.join();
}

TEST(Histogram, CountsAValueInTheBucketWhoseBoundItDoesNotExceed) {
  Histogram histogram({1, 2});
  for (double value : {0.5, 1.0, 1.5, 2.0, 9.0}) histogram.add(value);
  EXPECT_EQ(histogram.counts, (std::vector<uint64_t>{2, 2, 1}));
  EXPECT_EQ(histogram.count, 5u);
  EXPECT_DOUBLE_EQ(histogram.sum, 14.0);
}

// So that panels and alerts made for vLLM find the buckets they name.
TEST(EngineMetrics, BucketBoundsAreThoseOfVllm) {
  using Bounds = std::vector<double>;
  EXPECT_EQ(first_token_bounds(),
            (Bounds{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                    1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560}));
  EXPECT_EQ(output_token_bounds(), (Bounds{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                           0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}));
  EXPECT_EQ(request_bounds(), (Bounds{0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                      30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680}));
}

TEST(EngineMetrics, BucketBoundsAscend) {
  EngineMetrics metrics;
  for (const Histogram* histogram : {&metrics.ttft_seconds, &metrics.time_per_output_token_seconds,
                                     &metrics.e2e_seconds, &metrics.queue_seconds}) {
    EXPECT_FALSE(histogram->bounds.empty());
    EXPECT_TRUE(std::is_sorted(histogram->bounds.begin(), histogram->bounds.end()));
  }
}

}  // namespace
}  // namespace droidspeak
