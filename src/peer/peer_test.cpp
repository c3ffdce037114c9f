#include <future>
#include <thread>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/test_wait.h"
#include "peer/peer_address.h"
#include "peer/test_nodes.h"

namespace droidspeak {
namespace {

using Status = PeerReadStatus;

PeerServerOptions server_options() {
  return {.listen = "127.0.0.1:0", .secret = kSecret};
}

PeerClientOptions client_options() {
  return patient_options(kSecret);
}

std::string message_of_server(const PeerServerOptions& options) {
  try {
    PeerServer server(options, test_source({}));
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "";
}

void expect_entry(const WaitingSink::Answer& answer, uint64_t number, size_t bytes) {
  EXPECT_EQ(answer.times, 1);
  EXPECT_EQ(answer.status, Status::kHere) << "entry " << number;
  EXPECT_TRUE(answer.bytes == test_entry(number, bytes)) << "entry " << number;
}

TEST(Peer, ReadsEntriesOfEverySizeAndSaysWhatIsMissing) {
  std::vector<size_t> sizes = {0,
                               1,
                               100,
                               4096,
                               20480,
                               65536,
                               1 << 20,
                               kMaxPeerEntryBytes,
                               3 << 20,
                               8 << 10,
                               kMaxPeerEntryBytes + 1};
  PeerServer server(server_options(), test_source(sizes));
  PeerClient client(client_options());
  size_t num_asked = sizes.size() + 3;
  auto answers = read_and_wait(client, {server.address(), test_items(num_asked, 65536)});
  for (size_t i = 0; i < sizes.size() - 1; ++i) expect_entry(answers[i], i, sizes[i]);
  for (size_t i = sizes.size() - 1; i < num_asked; ++i)
    EXPECT_EQ(answers[i].status, Status::kMissing);
}

TEST(Peer, EntriesThatAreLargerThanExpectedComeInFurtherReplies) {
  std::vector<size_t> sizes(300, 100000);
  PeerServer server(server_options(), test_source(sizes));
  PeerClient client(client_options());
  auto answers = read_and_wait(client, {server.address(), test_items(sizes.size(), 1)});
  for (size_t i = 0; i < sizes.size(); ++i) expect_entry(answers[i], i, sizes[i]);
  EXPECT_GT(server.counters().requests, size_t{300 * 100000} / kMaxReplyBytes);
}

TEST(Peer, SendsTheHeadBeforeTheBytes) {
  auto bytes = std::make_shared<std::vector<std::byte>>(test_entry(7, 1000));
  PeerServer server(server_options(), [bytes](const PeerKey&) {
    PeerEntry entry{.head_bytes = 2, .bytes = *bytes, .owner = bytes};
    entry.head[0] = std::byte{1};
    entry.head[1] = std::byte{2};
    return std::optional(entry);
  });
  PeerClient client(client_options());
  auto answers = read_and_wait(client, {server.address(), test_items(1, 1000)});
  ASSERT_EQ(answers[0].bytes.size(), 1002U);
  EXPECT_EQ(answers[0].bytes[1], std::byte{2});
  EXPECT_EQ(answers[0].bytes[2], bytes->front());
}

TEST(Peer, ManyReadersOfTwoNodesGetWhatTheyAskedFor) {
  std::vector<size_t> sizes(200, 20480);
  PeerServer first(server_options(), test_source(sizes));
  PeerServer second(server_options(), test_source(sizes));
  PeerClient client(client_options());
  std::vector<std::thread> readers;
  for (int r = 0; r < 4; ++r) {
    readers.emplace_back([&, r] {
      const PeerServer& server = r % 2 == 0 ? first : second;
      for (int round = 0; round < 3; ++round) {
        auto answers = read_and_wait(client, {server.address(), test_items(sizes.size(), 20480)});
        for (size_t i = 0; i < sizes.size(); ++i) expect_entry(answers[i], i, sizes[i]);
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
  std::vector<PeerLink> links = client.links();
  ASSERT_EQ(links.size(), 2U);
  for (const PeerLink& link : links) {
    EXPECT_EQ(link.entries, 1200U);
    EXPECT_EQ(link.bytes, 1200U * 20480);
    EXPECT_EQ(link.lost, 0U);
    EXPECT_TRUE(link.is_connected);
    EXPECT_GT(link.round_trip_seconds, 0);
    EXPECT_GE(link.bytes_per_second, 0) << "nothing where no load was long beside a round trip";
  }
}

TEST(Peer, NothingIsReadWithoutTheSecret) {
  PeerServer server(server_options(), test_source({1000, 1000}));
  PeerClientOptions other = client_options();
  other.secret = "what another family knows";
  PeerClient stranger(other);
  for (const auto& answer : read_and_wait(stranger, {server.address(), test_items(2, 1000)}))
    EXPECT_EQ(answer.status, Status::kLost);
  EXPECT_EQ(server.counters().requests, 0U);
  EXPECT_EQ(stranger.links().front().refused, 1U);
  PeerClient client(client_options());
  expect_entry(read_and_wait(client, {server.address(), test_items(1, 1000)})[0], 0, 1000);
}

TEST(Peer, ANodeThatIsNotThereIsLeftAloneAndFoundWhenItComes) {
  std::string address;
  {
    PeerServer server(server_options(), test_source({}));
    address = server.address();
  }
  PeerClientOptions patient = client_options();
  patient.first_rest = std::chrono::hours(1);
  patient.longest_rest = std::chrono::hours(1);
  PeerClient resting(patient);
  EXPECT_EQ(read_and_wait(resting, {address, test_items(1, 1)})[0].status, Status::kLost);
  EXPECT_FALSE(resting.may_ask(address));

  PeerClient client(client_options());
  EXPECT_EQ(read_and_wait(client, {address, test_items(1, 1)})[0].status, Status::kLost);
  PeerServerOptions again = server_options();
  again.listen = address;
  PeerServer server(again, test_source({5000}));
  expect_entry(read_until_answered(client, {address, test_items(1, 5000)})[0], 0, 5000);
  EXPECT_TRUE(client.may_ask(address));
  EXPECT_EQ(read_and_wait(resting, {address, test_items(1, 1)})[0].status, Status::kLost);
}

TEST(Peer, AServerThatGoesLosesWhatWasAsked) {
  auto server = std::make_unique<PeerServer>(server_options(), test_source({5000}));
  PeerClient client(client_options());
  std::string address = server->address();
  expect_entry(read_and_wait(client, {address, test_items(1, 5000)})[0], 0, 5000);
  server.reset();
  EXPECT_EQ(read_and_wait(client, {address, test_items(1, 5000)})[0].status, Status::kLost);
}

// Who closes first keeps the address of a connection for a minute, and a server that is started
// again must not wait for that.
TEST(Peer, AServerThatGoesFirstCanListenAgainAtOnce) {
  auto server = std::make_unique<PeerServer>(server_options(), test_source({5000}));
  PeerServerOptions again = server_options();
  again.listen = server->address();
  PeerAddress address = *parse_peer_address(again.listen);
  int connection = ::socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(::connect(connection, address.get(), address.length), 0);
  PeerClient client(client_options());
  expect_entry(read_and_wait(client, {again.listen, test_items(1, 5000)})[0], 0, 5000);
  server.reset();
  char byte = 0;
  EXPECT_LE(::read(connection, &byte, 1), 0) << "the server has closed";
  ::close(connection);
  EXPECT_EQ(message_of_server(again), "");
}

TEST(Peer, AClientThatGoesHasDoneEveryEntryOnce) {
  std::vector<size_t> sizes(600, 50000);
  PeerServer server(server_options(), test_source(sizes));
  auto sink = std::make_shared<WaitingSink>(sizes.size());
  {
    PeerClient client(client_options());
    client.read(server.address(), test_items(sizes.size(), 50000), std::chrono::minutes(5), sink);
    spin_until([&] { return sink->num_done() > 0; });
  }
  EXPECT_EQ(sink->num_done(), sizes.size());
  for (const auto& answer : sink->wait()) EXPECT_EQ(answer.times, 1);
}

TEST(Peer, ASourceThatTakesTooLongCostsTheDeadline) {
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  PeerServer server(server_options(), [gone](const PeerKey&) -> std::optional<PeerEntry> {
    gone.wait();
    return std::nullopt;
  });
  PeerClient client(client_options());
  auto answers =
      read_and_wait(client, {server.address(), test_items(3, 100), std::chrono::milliseconds(100)});
  for (const auto& answer : answers) EXPECT_EQ(answer.status, Status::kLost);
  go.set_value();
}

// Waits in its first entry until the server has had time to send more than it should.
class SlowSink final : public PeerReadSink {
 public:
  SlowSink(size_t count, const PeerServer& server) : inner_(count), server_(server) {}

  void done(size_t index, PeerReadStatus status, std::span<const std::byte> bytes) override {
    if (inner_.num_done() == 0) {
      wait_until([&] { return server_.counters().requests >= 8; });
      for (int i = 0; i < 10000; ++i) std::this_thread::yield();
      num_requests_ = server_.counters().requests;
    }
    inner_.done(index, status, bytes);
  }

  WaitingSink& inner() { return inner_; }

  uint64_t num_requests() const { return num_requests_; }

 private:
  WaitingSink inner_;
  const PeerServer& server_;
  uint64_t num_requests_ = 0;
};

TEST(Peer, NoMoreIsAskedForThanASlowReaderTakes) {
  std::vector<size_t> sizes(60, 1 << 20);
  PeerServer server(server_options(), test_source(sizes));
  PeerClient client(client_options());
  auto sink = std::make_shared<SlowSink>(sizes.size(), server);
  client.read(server.address(), test_items(sizes.size(), 1 << 20), std::chrono::minutes(10), sink);
  std::vector<WaitingSink::Answer> answers = sink->inner().wait();
  for (size_t i = 0; i < sizes.size(); ++i) expect_entry(answers[i], i, sizes[i]);
  EXPECT_EQ(sink->num_requests(), 8U);
}

TEST(Peer, OneClientMoreThanAllowedIsRefused) {
  PeerServerOptions one = server_options();
  one.max_clients = 1;
  PeerServer server(one, test_source({100}));
  PeerClient first(client_options());
  expect_entry(read_and_wait(first, {server.address(), test_items(1, 100)})[0], 0, 100);
  PeerClient second(client_options());
  EXPECT_EQ(read_and_wait(second, {server.address(), test_items(1, 100)})[0].status, Status::kLost);
  EXPECT_EQ(server.counters().refused, 1U);
}

TEST(Peer, SaysWhatIsWrongWithAnAddressOrASecret) {
  EXPECT_NE(message_of_server({.listen = "0.0.0.0:1", .secret = "s"}).find("name the one"),
            std::string::npos);
  EXPECT_NE(message_of_server({.listen = "[::]:1", .secret = "s"}).find("name the one"),
            std::string::npos);
  EXPECT_NE(message_of_server({.listen = "127.0.0.1", .secret = "s"}).find("has no port"),
            std::string::npos);
  EXPECT_NE(message_of_server({.listen = "127.0.0.1:70000", .secret = "s"}).find("0 to 65535"),
            std::string::npos);
  EXPECT_NE(message_of_server({.listen = "127.0.0.1:0", .secret = ""}).find("a secret"),
            std::string::npos);
  PeerServer server(server_options(), test_source({}));
  EXPECT_NE(message_of_server({.listen = server.address(), .secret = "s"}).find(server.address()),
            std::string::npos);
}

TEST(PeerAddress, TakesNumbersOfBothFamilies) {
  EXPECT_EQ(parse_peer_address("127.0.0.1:80")->text(), "127.0.0.1:80");
  EXPECT_EQ(parse_peer_address("[::1]:80")->text(), "[::1]:80");
  for (const char* text : {"", ":", "a:1", "1.2.3.4:", "1.2.3.4:x", "::1:80", "[::1]", "[]:1"})
    EXPECT_FALSE(parse_peer_address(text)) << text;
}

}  // namespace
}  // namespace droidspeak
