#include "store/tiers/peer_meetings.h"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

namespace droidspeak {
namespace {

using Steady = std::chrono::steady_clock;

TEST(PeerMeetings, AreWaitedForUntilTheLastShareIsGone) {
  auto meetings = std::make_shared<PeerMeetings>();
  std::shared_ptr<const void> one = meetings->begin("a:1");
  std::shared_ptr<const void> two = one;
  std::atomic<bool> is_met = false;
  std::thread waiter([&] {
    meetings->wait_for("a:1", Steady::now() + std::chrono::hours(1));
    EXPECT_TRUE(is_met);
  });
  one.reset();
  is_met = true;
  two.reset();
  waiter.join();
}

TEST(PeerMeetings, OthersAreNotWaitedForAndNobodyWaitsLonger) {
  auto meetings = std::make_shared<PeerMeetings>();
  std::shared_ptr<const void> meeting = meetings->begin("a:1");
  EXPECT_TRUE(meetings->are_under_way());
  meetings->wait_for("b:1", Steady::now() + std::chrono::hours(1));
  meetings->wait_for("a:1", Steady::now());
  std::shared_ptr<const void> again = meetings->begin("a:1");
  meeting.reset();
  meetings->wait_for("a:1", Steady::now());
  again.reset();
  EXPECT_FALSE(meetings->are_under_way());
  meetings->wait_for("a:1", Steady::now() + std::chrono::hours(1));
}

// A probe may end after the tier that sent it.
TEST(PeerMeetings, MayEndLate) {
  auto meetings = std::make_shared<PeerMeetings>();
  std::shared_ptr<const void> meeting = meetings->begin("a:1");
  meetings.reset();
  meeting.reset();
}

}  // namespace
}  // namespace droidspeak
