#include "rate_search.h"

#include <gtest/gtest.h>

namespace droidspeak {

namespace {

using Outcome = RateSearch::Outcome;

struct Found {
  double rate = 0;
  int trials = 0;
};

// A server that meets its target up to `capacity`.
Found search(double capacity, double first_rate) {
  RateSearch search(first_rate, 1.2);
  Found found;
  while (auto rate = search.next()) {
    search.note(*rate, *rate <= capacity ? Outcome::kMet : Outcome::kMissed);
    if (++found.trials > 30) break;
  }
  found.rate = search.best();
  return found;
}

TEST(RateSearch, FindsTheCapacityToWithinItsPrecision) {
  for (double capacity : {0.13, 0.5, 0.9, 1.0, 1.1, 3.0, 17.0}) {
    Found found = search(capacity, 1);
    EXPECT_LE(found.rate, capacity);
    EXPECT_GE(found.rate, capacity / 1.2) << capacity;
    EXPECT_LE(found.trials, 12) << capacity;
  }
}

TEST(RateSearch, GivesUpOnAServerThatMeetsNoTarget) {
  Found found = search(0, 1);
  EXPECT_EQ(found.rate, 0);
  EXPECT_LE(found.trials, 8);
}

}  // namespace

}  // namespace droidspeak
