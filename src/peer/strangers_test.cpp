// Whoever comes to a node's port and is no node: whatever is said there, the node goes on serving,
// and keeps nothing.
#include <atomic>
#include <filesystem>
#include <iterator>
#include <thread>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/test_wait.h"
#include "peer/test_meeting.h"
#include "peer/test_nodes.h"
#include "peer/test_stranger.h"

namespace droidspeak {
namespace {

using Status = PeerReadStatus;

constexpr size_t kReadBytes = 60000;

size_t num_descriptors() {
  auto all = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

// A node that is read from all the time.
class Strangers : public testing::Test {
 protected:
  Strangers() {
    read_some();
    before_ = num_descriptors();
    reader_ = std::thread([this] {
      while (!is_over_.load()) read_some();
    });
  }

  // It was read from to the end, by the same connection, and nothing is left of the strangers.
  void TearDown() override {
    is_over_.store(true);
    reader_.join();
    read_some();
    EXPECT_EQ(client_.links().front().failures, 0U);
    EXPECT_EQ(server_.counters().clients, 1U);
    wait_until([this] { return num_descriptors() == before_; }, "the strangers' descriptors");
  }

  void read_some() {
    auto answers = read_and_wait(client_, {server_.address(), test_items(20, kReadBytes)});
    for (size_t i = 0; i < answers.size(); ++i)
      EXPECT_TRUE(answers[i].bytes == test_entry(i, kReadBytes)) << "entry " << i;
  }

  FileDescriptor come() const { return connect_to(server_.address()); }

  void expect_sent_away_for(const Bytes& bytes) {
    for (int i = 0; i < 3; ++i) {
      FileDescriptor stranger = come();
      say(stranger, bytes);
      EXPECT_TRUE(is_sent_away(stranger));
    }
    EXPECT_GE(server_.counters().refused, 3U);
  }

  PeerServer server_{
      {.listen = "127.0.0.1:0", .secret = kSecret, .greeting_deadline = std::chrono::minutes(5)},
      test_source(std::vector<size_t>(20, kReadBytes))};
  PeerClient client_{patient_options(kSecret)};
  size_t before_ = 0;
  std::atomic<bool> is_over_ = false;
  std::thread reader_;
};

// UCX's connection manager ends the process for them.
TEST_F(Strangers, WithAHundredZeros) {
  expect_sent_away_for(Bytes(100));
}

TEST_F(Strangers, WithAMegabyteOfZeros) {
  expect_sent_away_for(Bytes(1 << 20));
}

TEST_F(Strangers, WithAHundredOnes) {
  expect_sent_away_for(Bytes(100, std::byte{0xff}));
}

TEST_F(Strangers, WithRandomBytes) {
  for (size_t bytes : {100, 4096, 65536}) expect_sent_away_for(test_entry(bytes, bytes));
}

TEST_F(Strangers, WithAnHttpRequest) {
  expect_sent_away_for(bytes_of("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n\r\n"));
}

TEST_F(Strangers, WithUcxsOwnMagic) {
  Bytes bytes = bytes_of("\x78\x56\x34\x12\xbe\xba\xfe\xca");
  bytes.resize(100, std::byte{0xff});
  expect_sent_away_for(bytes);
}

TEST_F(Strangers, WithAGreetingAndZeros) {
  Bytes bytes = encode(PeerHello{random_nonce()});
  bytes.resize(200);
  FileDescriptor stranger = come();
  say(stranger, bytes);
  hear(stranger, kPeerChallengeBytes);
  EXPECT_TRUE(is_sent_away(stranger));
}

TEST_F(Strangers, WithAnEndlessIntroduction) {
  FileDescriptor stranger = come();
  PeerSession session = greet(stranger, kSecret);
  Bytes bytes = encode(PeerIntroduction{Bytes(1), 0}, PeerSide::kClient, session);
  std::fill(bytes.begin() + 4, bytes.begin() + 8, std::byte{0xff});  // its length
  say(stranger, bytes);
  EXPECT_TRUE(is_sent_away(stranger));
}

TEST_F(Strangers, WithAnotherSecret) {
  FileDescriptor stranger = come();
  PeerSession session = greet(stranger, "a guess");
  say(stranger, encode(PeerIntroduction{Bytes(200), 0}, PeerSide::kClient, session));
  EXPECT_TRUE(is_sent_away(stranger));
}

// What one has heard of another meeting does not help.
TEST_F(Strangers, WhoRepeatAnIntroduction) {
  UcxWorker worker;
  PeerSession old(kSecret, random_nonce(), random_nonce());
  FileDescriptor stranger = come();
  greet(stranger, kSecret);
  say(stranger, encode(PeerIntroduction{worker.address(), 0}, PeerSide::kClient, old));
  EXPECT_TRUE(is_sent_away(stranger));
}

TEST_F(Strangers, WhoGoInTheMiddle) {
  Bytes hello = encode(PeerHello{random_nonce()});
  for (size_t bytes : {size_t{0}, size_t{17}, kPeerHelloBytes}) {
    FileDescriptor stranger = come();
    say(stranger, std::span(hello).first(bytes));
  }
  wait_until([this] { return server_.counters().refused >= 3; });
}

// UCX pairs endpoints by the order in which they are made, which a meeting that one side thinks to
// have ended and the other does not would confuse.
TEST(PeerDoor, MeetingsThatEndHalfwayDoNotConfuseTheNext) {
  UcxWorker server;
  UcxWorker client;
  OpenDoor door(server, kSecret);
  int num_heard = 0;
  server.on_message(PeerMessage::kHello, [&](const ArrivedPeerMessage& message) {
    EXPECT_EQ(message.from, door.last());
    ++num_heard;
  });
  auto meanwhile = [&] {
    door.progress();
    server.progress();
  };
  SocketWatch watch;
  auto hear_hello = [&](ucp_ep_h endpoint, int times) {
    auto hello = std::make_shared<Bytes>(encode(PeerHello{random_nonce()}));
    client.send(endpoint, {.id = PeerMessage::kHello, .body = *hello, .keep = hello}, nullptr);
    wait_until([&] {
      client.progress();
      meanwhile();
      return num_heard == times;
    });
  };
  TestWay first = find_way(client, watch, door.address(), meanwhile);
  hear_hello(first.endpoint, 1);
  for (int i = 0; i < 3; ++i) meet(client, watch, door.address(), meanwhile);  // server's only
  TestWay second = find_way(client, watch, door.address(), meanwhile);
  EXPECT_EQ(second.knock.node().place, 4U);
  hear_hello(second.endpoint, 2);
  hear_hello(find_way(client, watch, door.address(), meanwhile).endpoint, 3);
}

// However many meetings came to nothing, the next ones make up for them bit by bit, and a server
// that has started anew is met as if for the first time.
TEST(PeerDoor, ManyMeetingsThatEndHalfwayShutNobodyOut) {
  UcxWorker client;
  SocketWatch watch;
  UcxWorker server;
  OpenDoor door(server, kSecret);
  auto meanwhile = [&] {
    door.progress();
    server.progress();
  };
  for (int i = 0; i < 120; ++i) meet(client, watch, door.address(), meanwhile);
  int num_tries = 0;
  bool is_there = false;
  while (!is_there && num_tries < 10) {
    PeerKnock knock = meet(client, watch, door.address(), meanwhile);
    is_there = static_cast<bool>(client.connect(knock.node().address, knock.node().place));
    ++num_tries;
  }
  EXPECT_TRUE(is_there);
  EXPECT_GT(num_tries, 1) << "not all at once";
  UcxWorker anew;
  OpenDoor other(anew, kSecret);
  PeerKnock knock = meet(client, watch, other.address(), [&] {
    other.progress();
    anew.progress();
  });
  EXPECT_EQ(knock.node().place, 0U);
  EXPECT_TRUE(client.connect(knock.node().address, 0));
}

// What answers at the address is no node.
TEST(PeerClientAtAStrangersDoor, LosesWhatItAskedFor) {
  for (const Bytes& answer :
       {Bytes(100), test_entry(1, 100), bytes_of("HTTP/1.1 400 Bad Request\r\n\r\n"),
        encode(PeerChallenge{random_nonce(), {}})}) {
    FileDescriptor listener = listen_on(*parse_peer_address("127.0.0.1:0"));
    const std::string address = address_of(listener).text();
    std::thread stranger([&] {
      pollfd event{listener.get(), POLLIN, 0};
      ::poll(&event, 1, -1);
      FileDescriptor client(::accept(listener.get(), nullptr, nullptr));
      say(client, answer);
      EXPECT_FALSE(hear(client, kPeerHelloBytes).empty());
      EXPECT_TRUE(is_sent_away(client));
    });
    PeerClientOptions options = patient_options(kSecret);
    options.first_rest = std::chrono::hours(1);
    if (answer.size() < kPeerChallengeBytes) options.connect_deadline = std::chrono::seconds(1);
    PeerClient client(options);
    auto answers = read_and_wait(client, {address, test_items(1, 100)});
    EXPECT_EQ(answers[0].status, Status::kLost);
    stranger.join();
  }
}

}  // namespace
}  // namespace droidspeak
