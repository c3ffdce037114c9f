#include "sharing/look.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace droidspeak {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// From the definition, with a full sort.
std::vector<int32_t> slowly_chosen(const std::vector<float>& mass, int32_t count) {
  auto size = static_cast<int32_t>(mass.size());
  std::vector<std::pair<float, int32_t>> order;
  for (int32_t token = 0; token < size; ++token) {
    float sum = 0;
    int32_t num = 0;
    for (int32_t i = token - 2; i <= token + 2; ++i) {
      if (i < 4 || i >= size) continue;
      sum += mass[static_cast<size_t>(i)];
      ++num;
    }
    float interest =
        token < 4 ? std::numeric_limits<float>::infinity() : sum / static_cast<float>(num);
    order.push_back({-interest, token});
  }
  std::sort(order.begin(), order.end());
  std::vector<int32_t> chosen;
  for (int32_t i = 0; i < std::min(count, size); ++i)
    chosen.push_back(order[static_cast<size_t>(i)].second);
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

TEST(Look, ChoosesAsDefined) {
  std::mt19937 random(5);
  std::exponential_distribution<float> mass_of(1);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<float> mass(1 + random() % 200);
    for (float& value : mass) value = random() % 3 == 0 ? 1.0f : mass_of(random);
    auto count = static_cast<int32_t>(random() % (mass.size() + 3));
    EXPECT_EQ(choose_looked_at(mass, count), slowly_chosen(mass, count));
  }
}

TEST(Look, TakesTheFirstTokensAndWhatIsLookedAtWithItsNeighbours) {
  std::vector<float> mass(64, 0.0f);
  mass[30] = 5;
  mass[0] = 1000;
  EXPECT_THAT(choose_looked_at(mass, 9), ElementsAre(0, 1, 2, 3, 28, 29, 30, 31, 32));
  EXPECT_THAT(choose_looked_at(mass, 2), ElementsAre(0, 1));
  EXPECT_THAT(choose_looked_at(mass, 0), IsEmpty());
}

TEST(Look, ANumberThatIsNoneIsNoInterest) {
  std::vector<float> mass(64, 0.1f);
  mass[20] = std::numeric_limits<float>::quiet_NaN();
  mass[40] = std::numeric_limits<float>::infinity();
  mass[50] = 3;
  std::vector<int32_t> chosen = choose_looked_at(mass, 9);
  EXPECT_THAT(chosen, ElementsAre(0, 1, 2, 3, 48, 49, 50, 51, 52));
}

}  // namespace
}  // namespace droidspeak
