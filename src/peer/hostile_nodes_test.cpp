// Nodes that speak UCX and say what they should not: clients that a server refuses, servers that a
// client does not believe.
#include <atomic>
#include <functional>
#include <future>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/test_wait.h"
#include "peer/test_meeting.h"
#include "peer/test_nodes.h"
#include "peer/ucx_worker.h"

namespace droidspeak {
namespace {

using Bytes = std::vector<std::byte>;
using Status = PeerReadStatus;

UcxWorker::Message message_of(PeerMessage id, Bytes bytes) {
  auto body = std::make_shared<Bytes>(std::move(bytes));
  return {.id = id, .body = *body, .keep = body};
}

class HostileClient {
 public:
  explicit HostileClient(const std::string& address) : way_(find_way(worker_, watch_, address)) {
    worker_.on_message(PeerMessage::kChallenge, [this](const ArrivedPeerMessage& message) {
      Result<PeerChallenge> challenge = parse_peer_challenge(message.body);
      ASSERT_TRUE(challenge);
      session_.emplace(secret_, nonce_, challenge->nonce);
    });
  }

  void send(PeerMessage id, Bytes bytes) {
    worker_.send(way_.endpoint, message_of(id, std::move(bytes)), nullptr);
  }

  const PeerSession& greet(std::string secret) {
    secret_ = std::move(secret);
    send(PeerMessage::kHello, encode(PeerHello{nonce_}));
    progress_until([&] { return session_.has_value(); });
    return *session_;
  }

  template <class Condition>
  void progress_until(Condition is_so) {
    wait_until([&] {
      worker_.progress();
      return is_so();
    });
  }

 private:
  UcxWorker worker_;
  SocketWatch watch_;
  TestWay way_;
  std::string secret_;
  PeerNonce nonce_ = random_nonce();
  std::optional<PeerSession> session_;
};

// UCX itself would end the process.
TEST(UcxWorker, GoesWhileSomebodyHasNotFetchedItsMessage) {
  UcxWorker receiver;
  receiver.on_message(PeerMessage::kHello, [](const ArrivedPeerMessage&) {});
  OpenDoor door(receiver, kSecret);
  auto sender = std::make_unique<UcxWorker>();
  SocketWatch watch;
  TestWay way = find_way(*sender, watch, door.address(), [&] { door.progress(); });
  bool is_sent = false;
  sender->send(way.endpoint, message_of(PeerMessage::kHello, test_entry(1, 40)),
               [&](ucs_status_t status) { is_sent = status == UCS_OK; });
  wait_until([&] {
    sender->progress();
    receiver.progress();
    return is_sent;
  });
  auto body = std::make_shared<Bytes>(8 << 20);
  sender->send(way.endpoint, {.id = PeerMessage::kHello, .body = *body, .keep = std::move(body)},
               nullptr);
  for (int i = 0; i < 100; ++i) sender->progress();
  ASSERT_EQ(sender->num_pending(), 1U);
  sender.reset();
}

class HostileClients : public testing::Test {
 protected:
  static PeerServerOptions options() {
    return {.listen = "127.0.0.1:0",
            .secret = kSecret,
            .max_requests_per_client = 4,
            .greeting_deadline = std::chrono::minutes(5),
            .stall = std::chrono::milliseconds(200)};
  }

  static void expect_serves_others(const PeerServer& server) {
    PeerClient client(patient_options(kSecret));
    auto answers = read_and_wait(client, {server.address(), test_items(1, 1000)});
    EXPECT_TRUE(answers[0].bytes == test_entry(0, 1000));
  }

  // Serves others as before, and the hostile one is gone.
  void expect_refused(HostileClient& hostile) {
    hostile.progress_until(
        [&] { return server_.counters().refused + server_.counters().stalled > 0; });
    hostile.progress_until([&] { return server_.counters().clients == 0; });
    expect_serves_others(server_);
  }

  static constexpr size_t kLargeEntry = size_t{3} << 20;

  PeerServer server_{options(), test_source({1000, kLargeEntry})};
  HostileClient hostile_{server_.address()};
};

TEST_F(HostileClients, WithAGreetingOfRandomBytes) {
  hostile_.send(PeerMessage::kHello, test_entry(1, 40));
  expect_refused(hostile_);
}

TEST_F(HostileClients, WithAnEndlessGreeting) {
  hostile_.send(PeerMessage::kHello, Bytes(8 << 20));
  expect_refused(hostile_);
}

TEST_F(HostileClients, WhoAskBeforeTheyGreet) {
  PeerSession session(kSecret, {}, {});
  hostile_.send(PeerMessage::kRequest, encode(PeerRequest{1, {test_key(0)}}, session));
  expect_refused(hostile_);
}

TEST_F(HostileClients, WhoGreetTwice) {
  hostile_.greet(kSecret);
  hostile_.send(PeerMessage::kHello, encode(PeerHello{random_nonce()}));
  expect_refused(hostile_);
}

TEST_F(HostileClients, WithoutTheSecret) {
  const PeerSession& session = hostile_.greet("a guess");
  hostile_.send(PeerMessage::kRequest, encode(PeerRequest{1, {test_key(0)}}, session));
  expect_refused(hostile_);
  EXPECT_EQ(server_.counters().entries, 1U);  // the good client's
}

TEST_F(HostileClients, WhoRepeatARequest) {
  const PeerSession& session = hostile_.greet(kSecret);
  for (int i = 0; i < 2; ++i)
    hostile_.send(PeerMessage::kRequest, encode(PeerRequest{1, {test_key(0)}}, session));
  expect_refused(hostile_);
}

TEST_F(HostileClients, WhoAskForMoreThanIsAllowed) {
  const PeerSession& session = hostile_.greet(kSecret);
  for (uint64_t id = 1; id <= 100; ++id)
    hostile_.send(PeerMessage::kRequest, encode(PeerRequest{id, {test_key(1)}}, session));
  expect_refused(hostile_);
  EXPECT_LE(server_.counters().requests, 100U);
}

// The reply is made when the client has stopped: none is taken by chance.
TEST_F(HostileClients, WhoTakeNoReplies) {
  std::promise<void> stop;
  PeerServer server(options(), [entries = test_source({1000, kLargeEntry}),
                                has_stopped = stop.get_future().share()](const PeerKey& key) {
    has_stopped.wait();
    return entries(key);
  });
  HostileClient hostile(server.address());
  const PeerSession& session = hostile.greet(kSecret);
  hostile.send(PeerMessage::kRequest, encode(PeerRequest{1, {test_key(1)}}, session));
  hostile.progress_until([&] { return server.counters().requests == 1; });
  stop.set_value();
  wait_until([&] { return server.counters().stalled == 1; });
  hostile.progress_until([&] { return server.counters().clients == 0; });
  expect_serves_others(server);
}

TEST(HostileClient, WhoNeverSaysAWordIsNotWaitedForForEver) {
  PeerServer server(
      {.listen = "127.0.0.1:0", .secret = kSecret, .greeting_deadline = std::chrono::seconds(2)},
      test_source({}));
  std::optional<HostileClient> hostile;
  try {
    hostile.emplace(server.address());
  } catch (const Failure&) {  // sent away before it had met the server
  }
  auto until = [&](auto is_so) { hostile ? hostile->progress_until(is_so) : wait_until(is_so); };
  until([&] { return server.counters().refused > 0; });
  until([&] { return server.counters().clients == 0; });
}

// Greets as it should and answers as it is told.
class HostileServer {
 public:
  struct Reply {
    PeerReplyHead head;
    Bytes body;
  };

  using Answer = std::function<void(Reply&, const PeerSession&)>;

  HostileServer(std::string secret, Answer answer)
      : secret_(std::move(secret)), answer_(std::move(answer)), door_(worker_, kSecret) {
    worker_.on_message(PeerMessage::kHello, [this](const ArrivedPeerMessage& m) { on_hello(m); });
    worker_.on_message(PeerMessage::kRequest,
                       [this](const ArrivedPeerMessage& m) { on_request(m); });
    thread_ = std::thread([this] {
      while (!is_stopping_.load()) {
        door_.progress();
        if (!worker_.progress()) worker_.wait(std::chrono::milliseconds(1));
      }
    });
  }

  ~HostileServer() {
    is_stopping_.store(true);
    thread_.join();
  }

  std::string address() const { return door_.address(); }

 private:
  void on_hello(const ArrivedPeerMessage& message) {
    PeerNonce nonce = random_nonce();
    session_.emplace(secret_, parse_peer_hello(message.body)->nonce, nonce);
    worker_.send(
        message.from,
        message_of(PeerMessage::kChallenge, encode(PeerChallenge{nonce, session_->server_proof()})),
        nullptr);
  }

  // A good reply with one entry for each key, until the test has changed it.
  void on_request(const ArrivedPeerMessage& message) {
    Result<PeerRequest> request = parse_peer_request(message.body, *session_);
    ASSERT_TRUE(request);
    Bytes room(kMaxReplyBytes);
    PeerReplyBody body(room, request->keys.size());
    for (const PeerKey& key : request->keys) body.add({}, test_entry(number_of(key), 100000));
    Reply reply{.head = {.request_id = request->id,
                         .num_keys = static_cast<uint32_t>(request->keys.size()),
                         .body_bytes = static_cast<uint32_t>(body.bytes().size())},
                .body = {body.bytes().begin(), body.bytes().end()}};
    reply.head.tag = peer_reply_tag(reply.head, reply.body, *session_);
    answer_(reply, *session_);
    UcxWorker::Message out = message_of(PeerMessage::kReply, std::move(reply.body));
    PeerReplyHeadBytes head = encode(reply.head);
    out.head.assign(head.begin(), head.end());
    worker_.send(message.from, std::move(out), nullptr);
  }

  UcxWorker worker_;
  const std::string secret_;
  const Answer answer_;
  OpenDoor door_;
  std::optional<PeerSession> session_;
  std::atomic<bool> is_stopping_ = false;
  std::thread thread_;
};

void sign(HostileServer::Reply& reply, const PeerSession& session) {
  reply.head.body_bytes = static_cast<uint32_t>(reply.body.size());
  reply.head.tag = peer_reply_tag(reply.head, reply.body, session);
}

void expect_not_believed(const HostileServer::Answer& answer) {
  HostileServer server(kSecret, answer);
  PeerClient client(patient_options(kSecret));
  for (const auto& got : read_and_wait(client, {server.address(), test_items(3, 100000)})) {
    EXPECT_EQ(got.times, 1);
    EXPECT_EQ(got.status, Status::kLost);
  }
  EXPECT_EQ(client.links().front().refused, 1U);
  wait_until([&] { return client.links().front().failures > 0; });
}

TEST(HostileServer, AnswersAsItShouldWhenToldNothing) {
  HostileServer server(kSecret, [](HostileServer::Reply&, const PeerSession&) {});
  PeerClient client(patient_options(kSecret));
  auto answers = read_and_wait(client, {server.address(), test_items(3, 100000)});
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(answers[i].bytes == test_entry(i, 100000));
}

TEST(HostileServer, WithoutTheSecretIsNotAsked) {
  std::atomic<int> num_asked = 0;
  HostileServer server("a guess", [&](HostileServer::Reply&, const PeerSession&) { ++num_asked; });
  PeerClient client(patient_options(kSecret));
  auto answers = read_and_wait(client, {server.address(), test_items(1, 100000)});
  EXPECT_EQ(answers[0].status, Status::kLost);
  EXPECT_EQ(num_asked.load(), 0);
  EXPECT_EQ(client.links().front().refused, 1U);
}

TEST(HostileServer, WithAFlippedBit) {
  expect_not_believed(
      [](HostileServer::Reply& reply, const PeerSession&) { reply.body[150000] ^= std::byte{16}; });
}

TEST(HostileServer, WithAWrongTag) {
  expect_not_believed(
      [](HostileServer::Reply& reply, const PeerSession&) { reply.head.tag[3] ^= std::byte{1}; });
}

TEST(HostileServer, WithHalfOfTheReply) {
  expect_not_believed([](HostileServer::Reply& reply, const PeerSession&) {
    reply.body.resize(reply.body.size() / 2);
  });
}

TEST(HostileServer, WithHalfOfTheReplyAndASignature) {
  expect_not_believed([](HostileServer::Reply& reply, const PeerSession& session) {
    reply.body.resize(reply.body.size() / 2);
    sign(reply, session);
  });
}

TEST(HostileServer, WithMoreThanAReplyCanBe) {
  expect_not_believed([](HostileServer::Reply& reply, const PeerSession& session) {
    reply.body.resize(kMaxReplyBytes + 100);
    sign(reply, session);
  });
}

TEST(HostileServer, WithAReplyToSomethingElse) {
  expect_not_believed([](HostileServer::Reply& reply, const PeerSession& session) {
    reply.head.request_id += 1;
    sign(reply, session);
  });
}

TEST(HostileServer, WithAReplyToFewerKeys) {
  expect_not_believed([](HostileServer::Reply& reply, const PeerSession& session) {
    Bytes room(kMaxReplyBytes);
    PeerReplyBody body(room, 1);
    body.add_missing();
    reply.body.assign(body.bytes().begin(), body.bytes().end());
    reply.head.num_keys = 1;
    sign(reply, session);
  });
}

TEST(HostileServer, WhoPutsOffEverything) {
  expect_not_believed([](HostileServer::Reply& reply, const PeerSession& session) {
    Bytes room(kMaxReplyBytes);
    PeerReplyBody body(room, 3);
    for (int i = 0; i < 3; ++i) body.add_later();
    reply.body.assign(body.bytes().begin(), body.bytes().end());
    sign(reply, session);
  });
}

// An old reply of this meeting in place of the new one.
TEST(HostileServer, WhoRepeatsAnOldReply) {
  std::optional<HostileServer::Reply> old;
  HostileServer server(kSecret, [&](HostileServer::Reply& reply, const PeerSession&) {
    if (!old) {
      old = reply;
    } else {
      uint64_t id = reply.head.request_id;
      reply = *old;
      reply.head.request_id = id;
    }
  });
  PeerClient client(patient_options(kSecret));
  auto first = read_and_wait(client, {server.address(), test_items(1, 100000)});
  EXPECT_EQ(first[0].status, Status::kHere);
  auto second = read_and_wait(client, {server.address(), {{test_key(1), 100000}}});
  EXPECT_EQ(second[0].status, Status::kLost);
}

}  // namespace
}  // namespace droidspeak
