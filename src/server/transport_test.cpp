#include "server/transport.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "server/body.h"
#include "server/transport_test_support.h"

namespace droidspeak {

namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class Transport : public testing::Test {
 protected:
  static TransportOptions options() {
    TransportOptions options;
    options.port = 0;
    options.max_body_bytes = 1000;
    options.read_timeout = milliseconds(500);
    options.patience = {.write = milliseconds(300), .half_closed = milliseconds(20)};
    options.max_connections = 8;
    options.max_refusals = 2;
    return options;
  }

  EchoApplication application_;
  std::atomic<int> num_connections_ = 0;
  HttpTransport transport_{application_, options(), num_connections_};
};

size_t num_answers(const std::string& all) {
  size_t count = 0;
  constexpr std::string_view kOncePerHead = "\r\nContent-Length: ";
  for (size_t i = 0; (i = all.find(kOncePerHead, i)) != std::string::npos; ++i) ++count;
  return count;
}

TEST_F(Transport, AnswersSeveralRequestsOnOneConnection) {
  Client client(transport_.port());
  client.send("GET /a?x=1 HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.read_until("GET /a "), StartsWith("HTTP/1.1 200 OK\r\n"));
  client.send("POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi");
  EXPECT_THAT(client.read_until("POST /b hi"), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST_F(Transport, AnswersPipelinedRequestsInOrder) {
  Client client(transport_.port());
  client.send(
      "POST /1 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\na"
      "POST /2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nb\r\n0\r\n\r\n"
      "GET /3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
      "GET /4 HTTP/1.1\r\nHost: x\r\n\r\n");
  std::string all = client.read_all();
  EXPECT_LT(all.find("POST /1 a"), all.find("POST /2 b"));
  EXPECT_LT(all.find("POST /2 b"), all.find("GET /3 "));
  EXPECT_EQ(num_answers(all), 3);
}

TEST_F(Transport, TakesHeadsInPieces) {
  Client client(transport_.port());
  for (char c : std::string_view("GET /p HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
    client.send(std::string_view(&c, 1));
  EXPECT_THAT(client.read_all(), HasSubstr("GET /p "));
}

TEST_F(Transport, ReadsChunkedBodies) {
  Client client(transport_.port());
  client.send(
      "POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
      "3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n");
  EXPECT_THAT(client.read_all(), HasSubstr("POST /c abcde"));
}

TEST_F(Transport, TakesAPostWithoutLengthAsEmpty) {
  Client client(transport_.port());
  client.send("POST /e HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(client.read_all(), HasSubstr("POST /e "));
}

TEST_F(Transport, InvitesBodiesThatWaitForIt) {
  Client client(transport_.port());
  client.send(
      "POST /d HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n"
      "Connection: close\r\n\r\n");
  EXPECT_THAT(client.read_some(), StartsWith("HTTP/1.1 100 "));
  client.send("ok");
  EXPECT_THAT(client.read_all(), HasSubstr("POST /d ok"));
}

TEST_F(Transport, SpeaksHttp10) {
  Client client(transport_.port());
  client.send("GET /1 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_THAT(client.read_until("GET /1 "), HasSubstr("\r\nConnection: keep-alive\r\n"));
  application_.may_answer = true;
  client.send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  std::string all = client.read_all();
  EXPECT_THAT(all, HasSubstr("\r\nConnection: close\r\n"));
  EXPECT_THAT(all, Not(HasSubstr("chunked")));
}

TEST_F(Transport, StreamsInChunks) {
  Client client(transport_.port());
  client.send("GET /stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  std::string all = client.read_until("c\r\ndata: tick\n\n\r\n");
  application_.may_answer = true;
  all += client.read_all();
  EXPECT_THAT(all, HasSubstr("\r\nTransfer-Encoding: chunked\r\n"));
  EXPECT_TRUE(all.ends_with("\r\n0\r\n\r\n"));
}

TEST_F(Transport, AnswersHeadWithoutABody) {
  Client client(transport_.port());
  client.send("HEAD /h HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  std::string all = client.read_all();
  EXPECT_THAT(all, HasSubstr("\r\nContent-Length: 8\r\n"));
  EXPECT_THAT(all, Not(HasSubstr("HEAD /h")));
}

struct Refusal {
  std::string request;
  int status;
};

Refusal post_with(const std::string& headers, const std::string& body, int status) {
  return {"POST / HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n\r\n" + body, status};
}

class Refused : public Transport, public testing::WithParamInterface<Refusal> {};

// Whatever follows on the connection is never taken for a request.
TEST_P(Refused, WithStatusAndErrorBodyAndClosed) {
  Client client(transport_.port());
  client.send(GetParam().request);
  std::string all = client.read_all();
  EXPECT_THAT(all, StartsWith("HTTP/1.1 " + std::to_string(GetParam().status)));
  EXPECT_THAT(all, HasSubstr("{\"error\":{\"message\":"));
  EXPECT_THAT(all, HasSubstr("\r\nConnection: close\r\n"));
  EXPECT_EQ(num_answers(all), 1);
  EXPECT_EQ(application_.num_answered, 0);
}

const std::string kSmuggled = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";

INSTANTIATE_TEST_SUITE_P(
    Requests,
    Refused,
    testing::Values(
        post_with("Content-Length: 1001", "", 413),
        post_with("Content-Length: 99999999999999999999999", "", 413),
        post_with("Transfer-Encoding: chunked", "3e9\r\n", 413),
        post_with("Content-Length: 5\r\nExpect: 100-continue\r\nContent-Encoding: gzip", "", 415),
        post_with("Content-Length: 5\r\nExpect: miracles", "hello", 417),
        post_with("Content-Length: -1", "", 400),
        post_with("Content-Length: x", "", 400),
        post_with("Content-Length: 1\r\nContent-Length: 2", "", 400),
        post_with("Content-Length: 4\r\nTransfer-Encoding: chunked", "0\r\n\r\n" + kSmuggled, 400),
        post_with("Transfer-Encoding: chunked\r\nContent-Length: 4", "0\r\n\r\n" + kSmuggled, 400),
        post_with("Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
                  "0\r\n\r\n" + kSmuggled,
                  400),
        post_with("Transfer-Encoding: xchunked", "0\r\n\r\n" + kSmuggled, 400),
        post_with("Transfer-Encoding : chunked", "0\r\n\r\n" + kSmuggled, 400),
        post_with("Content-Length : 0", kSmuggled, 400),
        post_with("X: 1\nContent-Length: 0", kSmuggled, 400),
        post_with("Transfer-Encoding: gzip", "", 400),
        post_with("Transfer-Encoding: chunked", "zz\r\n" + kSmuggled, 400),
        post_with("Transfer-Encoding: chunked", "1\r\nabc\r\n" + kSmuggled, 400),
        post_with("Content-Length: 5", "abc", 408),
        Refusal{"GET / HTTP/1.1\r\nHost: x\r\n", 408},
        Refusal{"GET / HTTP/1.1\r\n\r\n" + kSmuggled, 400},
        Refusal{"GET / HTTP/9.9\r\nHost: x\r\n\r\n" + kSmuggled, 505},
        Refusal{"nonsense\r\n\r\n" + kSmuggled, 400},
        Refusal{"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n" + kSmuggled, 400},
        Refusal{"POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab" + kSmuggled,
                404}));

TEST_F(Transport, RefusesTruncatedRequests) {
  for (const char* request :
       {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n",
        "GET / HTTP/1.1\r\nHost"}) {
    Client client(transport_.port());
    client.send(request);
    client.close_writing();
    EXPECT_THAT(client.read_all(), StartsWith("HTTP/1.1 400")) << request;
  }
}

TEST_F(Transport, RefusesHeadFloods) {
  Client client(transport_.port());
  client.send("GET / HTTP/1.1\r\nHost: x\r\n");
  for (int i = 0; i < 3000; ++i)
    client.send("X-Flood-" + std::to_string(i) + ": 0123456789012345\r\n");
  EXPECT_THAT(client.read_all(), StartsWith("HTTP/1.1 431"));
}

class Trickled : public Transport, public testing::WithParamInterface<std::string> {};

// Bytes come all the time, and the limit holds for the whole of them.
TEST_P(Trickled, RequestsEnd) {
  Client client(transport_.port());
  client.send(GetParam());
  std::atomic<bool> is_over = false;
  std::thread trickle([&] {
    while (!is_over) {
      client.send("x");
      std::this_thread::sleep_for(milliseconds(20));
    }
  });
  std::string answer = client.read_some();
  is_over = true;
  trickle.join();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 408"));
}

INSTANTIATE_TEST_SUITE_P(
    Parts,
    Trickled,
    testing::Values("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n",
                    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n384\r\n",
                    "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "));

TEST_F(Transport, NoticesWhenAStreamsClientLeaves) {
  {
    Client client(transport_.port());
    client.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_THAT(client.read_some(), StartsWith("HTTP/1.1 200"));
  }
  EXPECT_TRUE(comes_true([&] { return application_.client_left.load(); }));
}

TEST_F(Transport, NoticesWhenAWaitingClientLeaves) {
  {
    Client client(transport_.port());
    client.send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_TRUE(comes_true([&] { return application_.num_waiting == 1; }));
  }
  EXPECT_TRUE(comes_true([&] { return application_.client_left.load(); }));
}

// The probe that tells a waiting client from one that left is an interim answer, which clients
// skip.
TEST_F(Transport, AnswersClientsThatHaveClosedTheirOwnSide) {
  Client client(transport_.port());
  client.send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
  client.close_writing();
  EXPECT_THAT(client.read_some(), StartsWith("HTTP/1.1 100 Continue\r\n\r\n"));
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(application_.client_left);
    std::this_thread::sleep_for(milliseconds(5));
  }
  application_.may_answer = true;
  std::string all = client.read_all();
  EXPECT_THAT(all, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(all, HasSubstr("GET /wait "));
}

TEST_F(Transport, AnswersHttp10ClientsThatHaveClosedTheirOwnSide) {
  Client client(transport_.port());
  client.send("GET /wait HTTP/1.0\r\n\r\n");
  client.close_writing();
  EXPECT_TRUE(comes_true([&] { return application_.num_waiting == 1; }));
  std::this_thread::sleep_for(milliseconds(100));
  application_.may_answer = true;
  EXPECT_THAT(client.read_all(), StartsWith("HTTP/1.1 200"));
}

TEST_F(Transport, StreamsToClientsThatHaveClosedTheirOwnSide) {
  Client client(transport_.port());
  client.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  client.close_writing();
  EXPECT_THAT(client.read_until("\r\n3\r\n:\n\n\r\n"), HasSubstr("data: tick"));
  EXPECT_THAT(client.read_until("data: tick"), HasSubstr("data: tick"));
  application_.may_answer = true;
  EXPECT_TRUE(client.read_all().ends_with("0\r\n\r\n"));
}

TEST_F(Transport, DropsClientsThatTakeNothing) {
  Client client(transport_.port());
  client.send("GET /flood HTTP/1.1\r\nHost: x\r\n\r\n");
  Client large(transport_.port());
  large.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(comes_true([&] { return num_connections_ > 0; }));
  EXPECT_TRUE(comes_true([&] { return application_.client_left && num_connections_ == 0; }));
}

// Some progress all the time is not enough.
TEST(TransportRate, IsNotTooLow) {
  EchoApplication application;
  TransportOptions options;
  options.port = 0;
  options.patience = {.write = milliseconds(1000), .min_bytes_per_second = size_t{1} << 30};
  std::atomic<int> num_connections = 0;
  HttpTransport transport(application, options, num_connections);
  Client client(transport.port());
  client.send("GET /flood HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(comes_true([&] {
    client.read_some(4096);
    return application.client_left.load();
  }));
}

TEST_F(Transport, GivesLargeAnswersToThoseWhoTakeThem) {
  Client client(transport_.port());
  client.send("GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_GT(client.read_all().size(), size_t{8} << 20);
}

TEST_F(Transport, ServesOthersWhileSomeAreSlow) {
  std::vector<std::unique_ptr<Client>> slow;
  for (int i = 0; i < 6; ++i) {
    slow.push_back(std::make_unique<Client>(transport_.port()));
    slow.back()->send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nx");
  }
  Client quick(transport_.port());
  quick.send("GET /quick HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(quick.read_all(), HasSubstr("GET /quick"));
}

// Clients whose requests are in work.
std::vector<std::unique_ptr<Client>> waiting_clients(int port, int count) {
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < count; ++i) {
    clients.push_back(std::make_unique<Client>(port));
    clients.back()->send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
  }
  return clients;
}

TEST_F(Transport, RefusesConnectionsBeyondItsLimit) {
  auto clients = waiting_clients(transport_.port(), 8);
  EXPECT_TRUE(comes_true([&] { return application_.num_waiting == 8; }));
  Client extra(transport_.port());
  extra.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(extra.read_all(), StartsWith("HTTP/1.1 503"));
  EXPECT_EQ(num_connections_, 8);
  application_.may_answer = true;
  EXPECT_THAT(clients[0]->read_some(), StartsWith("HTTP/1.1 200"));
}

TEST_F(Transport, ClosesAtOnceWhenManyAreBeingRefused) {
  auto clients = waiting_clients(transport_.port(), 8);
  EXPECT_TRUE(comes_true([&] { return application_.num_waiting == 8; }));
  std::vector<std::unique_ptr<Client>> refused;  // they hold their side open
  for (int i = 0; i < 2; ++i) {
    refused.push_back(std::make_unique<Client>(transport_.port()));
    EXPECT_THAT(refused.back()->read_some(), StartsWith("HTTP/1.1 503"));
  }
  EXPECT_EQ(Client(transport_.port()).read_all(), "");
  application_.may_answer = true;
  for (const auto& client : clients) EXPECT_THAT(client->read_some(), StartsWith("HTTP/1.1 200"));
}

TEST_F(Transport, SurvivesUnfinishedConnections) {
  for (int i = 0; i < 50; ++i) Client client(transport_.port());
  EXPECT_TRUE(comes_true([&] {
    Client client(transport_.port());
    client.send("GET /h HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    return client.read_all().starts_with("HTTP/1.1 200");
  }));
}

TEST(TransportBodies, AreOffTheBudgetWhileTheyAreAnswered) {
  EchoApplication application;
  TransportOptions options;
  options.port = 0;
  options.max_body_bytes = 100000;
  options.body_budget_bytes = 100000;
  std::atomic<int> num_connections = 0;
  HttpTransport transport(application, options, num_connections);
  const size_t size = 60000;
  const std::string body(size, ' ');
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 1; i <= 4; ++i) {
    clients.push_back(std::make_unique<Client>(transport.port()));
    clients.back()->send("POST /wait HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " +
                         std::to_string(size) + "\r\n\r\n");
    clients.back()->send(body);
    ASSERT_TRUE(comes_true([&] { return application.num_waiting == i; }));
  }
  application.may_answer = true;
  EXPECT_THAT(clients.back()->read_some(), StartsWith("HTTP/1.1 200"));
}

TEST(TransportBodies, AreOnTheBudgetUntilTheyAreParsed) {
  EchoApplication application;
  TransportOptions options;
  options.port = 0;
  options.max_body_bytes = 100000;
  options.body_budget_bytes = 100000;
  options.free_body_bytes = 0;
  std::atomic<int> num_connections = 0;
  HttpTransport transport(application, options, num_connections);
  const std::string rest =
      " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 60000\r\n\r\n" +
      std::string(60000, ' ');
  Client parsing(transport.port());
  parsing.send("POST /parse" + rest);
  ASSERT_TRUE(comes_true([&] { return application.num_waiting == 1; }));
  Client other(transport.port());
  other.send("POST /" + rest);
  EXPECT_THAT(other.read_all(), StartsWith("HTTP/1.1 503"));
  application.may_answer = true;
  EXPECT_THAT(parsing.read_all(), StartsWith("HTTP/1.1 200"));
}

TEST(TransportBodies, AreRefusedBeyondTheBudget) {
  EchoApplication application;
  TransportOptions options;
  options.port = 0;
  options.max_body_bytes = 100000;
  options.body_budget_bytes = 100000;
  options.free_body_bytes = 0;
  std::atomic<int> num_connections = 0;
  HttpTransport transport(application, options, num_connections);
  const std::string head =
      "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 60000\r\n\r\n";
  // Whichever of the two is read first wins; until it is the slow one.
  EXPECT_TRUE(comes_true([&] {
    Client slow(transport.port());
    slow.send(head + std::string(59999, ' '));
    Client other(transport.port());
    other.send(head + std::string(60000, ' '));
    if (!other.read_all().starts_with("HTTP/1.1 503")) return false;
    slow.send(" ");
    return slow.read_all().starts_with("HTTP/1.1 200");
  }));
}

// Whoever fills the budget keeps out others of his kind, not everybody.
TEST(TransportBodies, ThatAreSmallPassWhenTheBudgetIsTaken) {
  EchoApplication application;
  TransportOptions options;
  options.port = 0;
  options.max_body_bytes = 100000;
  options.body_budget_bytes = 100000;
  options.free_body_bytes = 10;
  std::atomic<int> num_connections = 0;
  HttpTransport transport(application, options, num_connections);
  const std::string head = "POST /parse HTTP/1.1\r\nHost: x\r\nContent-Length: ";
  Client greedy(transport.port());
  greedy.send(head + "100000\r\n\r\n" + std::string(100000, ' '));
  Client another(transport.port());
  another.send(head + "20\r\n\r\n" + std::string(20, ' '));
  ASSERT_TRUE(comes_true([&] { return application.num_waiting == 2; }));
  Client over(transport.port());
  over.send(head + "11\r\n\r\n" + std::string(11, ' '));
  EXPECT_THAT(over.read_some(), StartsWith("HTTP/1.1 503"));
  Client small(transport.port());
  small.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n0123456789");
  EXPECT_THAT(small.read_until("0123456789"), StartsWith("HTTP/1.1 200"));
  application.may_answer = true;
}

// A key is asked for before a body is read, but not by /health.
TEST(TransportBodies, OfCallsThatTakeNoneAreSmall) {
  EchoApplication application;
  TransportOptions options;
  options.port = 0;
  std::atomic<int> num_connections = 0;
  HttpTransport transport(application, options, num_connections);
  auto answer = [&](const std::string& start, size_t size) {
    Client client(transport.port());
    client.send(start + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " +
                std::to_string(size) + "\r\n\r\n" + std::string(size, ' '));
    return client.read_all();
  };
  EXPECT_THAT(answer("GET /", 16384), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer("GET /", 16385), StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(answer("POST /", 16385), StartsWith("HTTP/1.1 200"));
}

TEST(Budget, RefusesWhatIsTooMuchTogether) {
  Budget budget(10);
  Budget::Share one(budget);
  EXPECT_TRUE(one.take(4));
  {
    Budget::Share other(budget);
    EXPECT_TRUE(other.take(3));
    EXPECT_TRUE(other.take(3));
    EXPECT_FALSE(other.take(1));
    EXPECT_FALSE(one.take(1));
    EXPECT_EQ(budget.used(), 10u);
  }
  EXPECT_EQ(budget.used(), 4u);
  EXPECT_TRUE(one.take(6));
}

TEST(TransportPort, IsRefusedWhenItIsTaken) {
  EchoApplication application;
  TransportOptions options;
  options.port = 0;
  std::atomic<int> num_connections = 0;
  HttpTransport first(application, options, num_connections);
  options.port = first.port();
  EXPECT_THROW(HttpTransport(application, options, num_connections), Failure);
}

TEST(TransportSocket, AnswersBesideThePort) {
  TemporaryFolder folder;
  EchoApplication application;
  TransportOptions options;
  options.port = 0;
  options.socket_path = folder.path() / "socket";
  std::atomic<int> num_connections = 0;
  {
    HttpTransport transport(application, options, num_connections);
    for (int i = 0; i < 3; ++i) {
      Client on_path(options.socket_path);
      on_path.send("GET /unix HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
      EXPECT_THAT(on_path.read_all(), HasSubstr("GET /unix "));
      Client on_port(transport.port());
      on_port.send("GET /tcp HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
      EXPECT_THAT(on_port.read_all(), HasSubstr("GET /tcp "));
    }
  }
  EXPECT_FALSE(std::filesystem::exists(options.socket_path));
}

}  // namespace

}  // namespace droidspeak
