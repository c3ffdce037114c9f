// The port that a node is known by, without UCX behind it.
#include <utility>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/test_wait.h"
#include "peer/peer_door.h"
#include "peer/test_stranger.h"

namespace droidspeak {
namespace {

using Time = PeerDoor::Time;

class Door : public testing::Test {
 protected:
  FileDescriptor come() const { return connect_to(door_.address().text()); }

  void attend() { door_.progress(now_); }

  bool hears_something(const FileDescriptor& stranger) {
    attend();
    std::byte heard{};
    return ::recv(stranger.get(), &heard, 1, MSG_DONTWAIT | MSG_PEEK) > 0;
  }

  // Without a word; as many as the system keeps waiting are let in at once.
  std::vector<FileDescriptor> silent(size_t count) {
    std::vector<FileDescriptor> strangers;
    while (strangers.size() < count) {
      strangers.push_back(come());
      attend();
    }
    return strangers;
  }

  PeerSession greet_at_door(const FileDescriptor& stranger) {
    PeerNonce nonce = random_nonce();
    say(stranger, encode(PeerHello{nonce}));
    wait_until([&] { return hears_something(stranger); }, "a challenge");
    auto challenge = parse_peer_challenge(hear(stranger, kPeerChallengeBytes));
    return {kSecret, nonce, challenge->nonce};
  }

  void introduce(const FileDescriptor& stranger) {
    PeerSession session = greet_at_door(stranger);
    say(stranger, encode(PeerIntroduction{Bytes(200), 0}, PeerSide::kClient, session));
    wait_until([&] { return hears_something(stranger); }, "an introduction");
  }

  const Time now_ = std::chrono::steady_clock::now();
  const Time late_ = now_ + std::chrono::seconds(6);
  size_t num_guests_ = 0;
  size_t num_gone_ = 0;
  std::vector<std::string> refused_;
  PeerDoor door_{{.listen = *parse_peer_address("127.0.0.1:0"),
                  .secret = kSecret,
                  .deadline = std::chrono::seconds(5)},
                 {.on_come =
                      [this](uint64_t, const PeerIntroduction&) {
                        ++num_guests_;
                        return PeerIntroduction{Bytes(100), 3};
                      },
                  .on_go = [this](uint64_t) { ++num_gone_; },
                  .on_refused = [this](std::string_view why) { refused_.emplace_back(why); }}};
};

TEST_F(Door, SendsAwayWhoStopsInTheMiddle) {
  const Bytes hello = encode(PeerHello{random_nonce()});
  FileDescriptor first = come();
  say(first, std::span(hello).first(17));
  FileDescriptor second = come();
  greet_at_door(second);
  EXPECT_EQ(door_.progress(now_), now_ + std::chrono::seconds(5));
  EXPECT_TRUE(refused_.empty());
  door_.progress(late_);
  EXPECT_TRUE(is_sent_away(first));
  EXPECT_TRUE(is_sent_away(second));
  EXPECT_EQ(refused_, (std::vector<std::string>(2, "does not show the secret")));
}

TEST_F(Door, KeepsAGuestUntilItGoes) {
  std::optional<FileDescriptor> guest = come();
  introduce(*guest);
  EXPECT_EQ(num_guests_, 1U);
  hear(*guest, kPeerIntroductionHeadBytes + 100 + sizeof(PeerRequestTag));
  EXPECT_GT(door_.progress(late_), late_ + std::chrono::minutes(1));
  std::byte heard{};
  EXPECT_EQ(::recv(guest->get(), &heard, 1, MSG_DONTWAIT), -1) << "it stays";
  EXPECT_EQ(num_gone_, 0U);
  guest.reset();
  wait_until([&] {
    attend();
    return num_gone_ == 1;
  });
}

TEST_F(Door, IsNotBlockedByTwoHundredWhoSayNothing) {
  std::vector<FileDescriptor> strangers = silent(200);
  FileDescriptor node = come();
  introduce(node);
  EXPECT_EQ(num_guests_, 1U);
  door_.progress(late_);
  for (const FileDescriptor& stranger : strangers) EXPECT_TRUE(is_sent_away(stranger));
  EXPECT_EQ(refused_.size(), 200U);
}

// Who has greeted stays before those who have not, even when it came first.
TEST_F(Door, SendsTheSilentAwayFirst) {
  FileDescriptor first = come();
  PeerSession session = greet_at_door(first);
  std::vector<FileDescriptor> strangers = silent(100);
  say(first, encode(PeerIntroduction{Bytes(200), 0}, PeerSide::kClient, session));
  wait_until([&] { return hears_something(first); }, "an introduction");
  EXPECT_EQ(num_guests_, 1U);
}

// Nobody comes while there are no descriptors; and nobody turns round and round meanwhile.
TEST_F(Door, WaitsForDescriptors) {
  FileDescriptor stranger = come();
  pollfd event{door_.descriptor(), POLLIN, 0};
  wait_until([&] { return ::poll(&event, 1, 0) == 1; }, "the stranger at the door");
  FileDescriptor next(::dup(stranger.get()));
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit none{static_cast<rlim_t>(next.get() + 1), limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  Time again = door_.progress(now_);
  EXPECT_LT(again, now_ + std::chrono::seconds(1));
  EXPECT_EQ(::poll(&event, 1, 0), 0);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  say(stranger, encode(PeerHello{random_nonce()}));
  wait_until([&] {
    door_.progress(again);
    std::byte heard{};
    return ::recv(stranger.get(), &heard, 1, MSG_DONTWAIT) > 0;
  });
}

}  // namespace
}  // namespace droidspeak
