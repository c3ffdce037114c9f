#include "sharing/load_pace.h"

#include <gtest/gtest.h>

namespace droidspeak {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kBytes = 1000;
constexpr int32_t kTokens = 1000;

// A link's limits; computing takes 10 ms a token.
LoadLimits link_limits() {
  LoadLimits limits{.stall = 300ms, .judged_after = 100ms};
  limits.saved_seconds = [](int32_t tokens) { return 1e-2 * tokens; };
  limits.most_lost_seconds = 0.35;
  return limits;
}

// A load that goes on at given rates, looked at every 10 ms. A byte is a token, and tokens are
// whole in pieces of 100.
class Loading {
 public:
  explicit Loading(const LoadLimits& limits) : pace_(limits, kBytes, kTokens, start_) {}

  // Until it is done; false when it was given up.
  bool run(std::chrono::milliseconds time, double bytes_per_second) {
    for (auto end = now_ + time; now_ < end && !reason_ && bytes_ < kBytes;) {
      now_ += 10ms;
      bytes_ += bytes_per_second * 0.01;
      auto bytes = static_cast<uint64_t>(bytes_);
      pace_.note_arrived(bytes, now_);
      if (has_whole_pieces) pace_.note_whole(static_cast<int32_t>(bytes / 100 * 100));
      reason_ = pace_.reason_to_stop(now_);
    }
    return !reason_;
  }

  double elapsed() const { return std::chrono::duration<double>(now_ - start_).count(); }

  // What has been lost against computing everything.
  double lost() const {
    double whole = has_whole_pieces ? static_cast<double>(static_cast<uint64_t>(bytes_) / 100) : 0;
    return elapsed() - whole;
  }

  const std::string& reason() const { return reason_.value(); }

  bool has_whole_pieces = true;

 private:
  const LoadPace::Time start_{1000s};
  LoadPace pace_;
  LoadPace::Time now_ = start_;
  double bytes_ = 0;
  std::optional<std::string> reason_;
};

TEST(LoadPace, ALoadThatIsFasterThanComputingGoesOn) {
  for (double rate : {400.0, 1000.0, 5000.0}) {  // a piece in less time than may be lost
    Loading load(link_limits());
    EXPECT_TRUE(load.run(20s, rate)) << rate;
  }
}

TEST(LoadPace, NeverMoreIsLostThanMayBe) {
  for (double first : {0.0, 50.0, 99.0, 150.0, 1000.0}) {
    for (auto slows_after : {0ms, 100ms, 500ms, 900ms}) {
      for (double then : {0.0, 1.0, 20.0, 80.0}) {
        Loading load(link_limits());
        if (load.run(slows_after, first)) load.run(100s, then);
        EXPECT_LE(load.lost(), 0.35 + 0.02) << first << " " << then;
      }
    }
  }
}

TEST(LoadPace, WhatIsSlowerThanComputingIsSeenAtOnce) {
  Loading load(link_limits());
  EXPECT_FALSE(load.run(20s, 90));
  EXPECT_NE(load.reason().find("computing takes"), std::string::npos) << load.reason();
  EXPECT_LE(load.elapsed(), 0.15);
}

// What counts is the rate of late, not the average.
TEST(LoadPace, ALinkThatSlowsDownIsJudgedByItsNewRate) {
  Loading load(link_limits());
  ASSERT_TRUE(load.run(500ms, 1000));
  EXPECT_FALSE(load.run(20s, 50));
  EXPECT_NE(load.reason().find("computing takes"), std::string::npos) << load.reason();
  EXPECT_LE(load.elapsed(), 0.5 + 0.35);
}

TEST(LoadPace, StandingStillEndsIt) {
  Loading load(link_limits());
  ASSERT_TRUE(load.run(500ms, 1000));
  EXPECT_FALSE(load.run(20s, 0));
  EXPECT_NE(load.reason().find("nothing has arrived for 300 ms"), std::string::npos);
  EXPECT_LE(load.elapsed(), 0.5 + 0.32);
}

TEST(LoadPace, WhatEarlierLoadsHaveLostCounts) {
  LoadLimits limits = link_limits();
  limits.lost_seconds = 0.2;
  Loading load(limits);
  load.has_whole_pieces = false;
  EXPECT_FALSE(load.run(20s, 200));
  EXPECT_LE(load.elapsed(), 0.17);
}

TEST(LoadPace, WhatCannotBeKeptIsNoGain) {
  Loading load(link_limits());
  load.has_whole_pieces = false;
  EXPECT_FALSE(load.run(20s, 500));
  EXPECT_NE(load.reason().find("are lost"), std::string::npos);
  EXPECT_LE(load.elapsed(), 0.37);
}

TEST(LoadPace, WithoutAnIdeaOfComputingOnlyStandingStillCounts) {
  LoadLimits limits = link_limits();
  limits.saved_seconds = {};
  Loading load(limits);
  EXPECT_TRUE(load.run(50s, 10));
}

TEST(LoadPace, WhatIsThereIsNotGivenUp) {
  LoadPace::Time start{1000s};
  LoadPace pace(link_limits(), kBytes, kTokens, start);
  pace.note_arrived(kBytes, start + 200ms);
  EXPECT_FALSE(pace.reason_to_stop(start + 60s));
}

TEST(LoadPace, StandsStillOnlyBeyondTheLimit) {
  LoadPace::Time start{1000s};
  LoadPace pace({.stall = 300ms}, kBytes, kTokens, start);
  pace.note_arrived(500, start + 100ms);
  pace.note_arrived(500, start + 200ms);  // nothing new
  EXPECT_FALSE(pace.reason_to_stop(start + 400ms));
  EXPECT_TRUE(pace.reason_to_stop(start + 401ms));
}

TEST(LoadPace, IsJudgedFromTheTimeThatWasSaidAndByWhatHasCome) {
  LoadPace::Time start{1000s};
  LoadPace slow(link_limits(), kBytes, kTokens, start);
  slow.note_arrived(1, start + 50ms);
  EXPECT_FALSE(slow.reason_to_stop(start + 99ms));
  EXPECT_TRUE(slow.reason_to_stop(start + 100ms));
  LoadPace silent(link_limits(), kBytes, kTokens, start);
  EXPECT_FALSE(silent.reason_to_stop(start + 200ms)) << "of which no rate is known";
}

TEST(LoadPace, GoesOnWhileTheRestTakesNoLongerThanComputing) {
  LoadPace::Time start{1000s};
  LoadLimits limits = link_limits();
  limits.stall = 60s;
  limits.most_lost_seconds = 100;
  LoadPace alike(limits, kBytes, kTokens, start);
  alike.note_arrived(500, start + 10s);
  EXPECT_FALSE(alike.reason_to_stop(start + 10s)) << "ten seconds either way";
  LoadPace slower(limits, kBytes, kTokens, start);
  slower.note_arrived(400, start + 8s);
  EXPECT_TRUE(slower.reason_to_stop(start + 8s));
  alike.note_whole(100);
  EXPECT_TRUE(alike.reason_to_stop(start + 10s)) << "what is whole need not be computed";
}

TEST(LoadPace, WhatIsWholeIsSavedAndWhatWasLostBeforeIsAdded) {
  LoadPace::Time start{1000s};
  LoadLimits limits = link_limits();
  limits.lost_seconds = 0.25;
  LoadPace pace(limits, kBytes, kTokens, start);
  pace.note_arrived(900, start + 100ms);
  pace.note_whole(10);
  EXPECT_FALSE(pace.reason_to_stop(start + 150ms)) << "0.25 + 0.15 - 0.1 s";
  std::optional<std::string> reason = pace.reason_to_stop(start + 250ms);
  ASSERT_TRUE(reason);
  EXPECT_NE(reason->find("0.40 s are lost, and 0.35 s may be"), std::string::npos) << *reason;
}

}  // namespace
}  // namespace droidspeak
