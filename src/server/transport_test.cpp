#include "server/transport.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/api_error.h"

namespace droidspeak {

namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Answers with what it was asked; /stream streams until the client leaves.
class EchoApplication final : public HttpApplication {
 public:
  std::optional<HttpResponse> screen(const HttpRequest& head) override {
    if (head.path != "/refused") return std::nullopt;
    return error_response(status_error(404, "refused"));
  }

  HttpResponse respond(HttpRequest& request) override {
    HttpResponse response;
    response.content_type = "text/plain";
    response.body = request.method + " " + request.path + " " + request.body;
    if (request.path == "/stream") {
      response.stream = [this](StreamWriter& writer) {
        while (writer.is_connected()) {
          if (!writer.write("tick\n")) break;
          std::this_thread::sleep_for(milliseconds(5));
        }
        client_left = true;
      };
    }
    return response;
  }

  HttpResponse refuse(const HttpRequest& /*head*/,
                      int status,
                      const std::string& message) override {
    return error_response(status_error(status, message));
  }

  std::atomic<bool> client_left = false;
};

class Client {
 public:
  explicit Client(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }

  ~Client() { ::close(socket_); }

  void send(std::string_view bytes) { ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }

  void close_writing() { ::shutdown(socket_, SHUT_WR); }

  std::string read_some() {
    char piece[4096];
    ssize_t count = ::recv(socket_, piece, sizeof piece, 0);
    return count > 0 ? std::string(piece, static_cast<size_t>(count)) : "";
  }

  // Until `text` has come.
  std::string read_until(std::string_view text) {
    std::string all;
    for (std::string piece = read_some(); !piece.empty(); piece = read_some()) {
      all += piece;
      if (all.find(text) != std::string::npos) break;
    }
    return all;
  }

  // Until the server closes.
  std::string read_all() {
    std::string all;
    for (std::string piece = read_some(); !piece.empty(); piece = read_some()) all += piece;
    return all;
  }

 private:
  int socket_;
};

class Transport : public testing::Test {
 protected:
  static TransportOptions options() {
    TransportOptions options;
    options.port = 0;
    options.max_body_bytes = 1000;
    options.read_timeout = milliseconds(300);
    options.max_connections = 8;
    return options;
  }

  EchoApplication application_;
  std::atomic<int> num_connections_ = 0;
  HttpTransport transport_{application_, options(), num_connections_};
};

TEST_F(Transport, AnswersSeveralRequestsOnOneConnection) {
  Client client(transport_.port());
  client.send("GET /a?x=1 HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.read_until("GET /a "), StartsWith("HTTP/1.1 200"));
  client.send("POST /b HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi");
  EXPECT_THAT(client.read_until("POST /b hi"), StartsWith("HTTP/1.1 200"));
}

TEST_F(Transport, AnswersPipelinedRequestsInOrder) {
  Client client(transport_.port());
  client.send(
      "POST /1 HTTP/1.1\r\nContent-Length: 1\r\n\r\naGET /2 HTTP/1.1\r\nConnection: close\r\n\r\n");
  std::string all = client.read_all();
  EXPECT_THAT(all, HasSubstr("POST /1 a"));
  EXPECT_LT(all.find("POST /1 a"), all.find("GET /2 "));
}

TEST_F(Transport, ReadsChunkedBodies) {
  Client client(transport_.port());
  client.send(
      "POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
      "3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n");
  EXPECT_THAT(client.read_all(), HasSubstr("POST /c abcde"));
}

TEST_F(Transport, TakesAPostWithoutLengthAsEmpty) {
  Client client(transport_.port());
  client.send("POST /e HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(client.read_all(), HasSubstr("POST /e "));
}

TEST_F(Transport, InvitesBodiesThatWaitForIt) {
  Client client(transport_.port());
  client.send(
      "POST /d HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(client.read_some(), StartsWith("HTTP/1.1 100 "));
  client.send("ok");
  EXPECT_THAT(client.read_all(), HasSubstr("POST /d ok"));
}

struct Refusal {
  const char* request;
  int status;
};

class Refused : public Transport, public testing::WithParamInterface<Refusal> {};

TEST_P(Refused, WithStatusAndErrorBody) {
  Client client(transport_.port());
  client.send(GetParam().request);
  std::string all = client.read_all();
  EXPECT_THAT(all, StartsWith("HTTP/1.1 " + std::to_string(GetParam().status)));
  EXPECT_THAT(all, HasSubstr("{\"error\":{\"message\":"));
}

INSTANTIATE_TEST_SUITE_P(
    Requests,
    Refused,
    testing::Values(
        Refusal{"POST / HTTP/1.1\r\nContent-Length: 1001\r\n\r\n", 413},
        Refusal{"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n", 413},
        Refusal{"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n", 413},
        Refusal{"POST / HTTP/1.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n"
                "Content-Encoding: gzip\r\n\r\n",
                415},
        Refusal{"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400},
        Refusal{"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400},
        Refusal{"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400},
        Refusal{"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        Refusal{"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 400},
        Refusal{"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
        Refusal{"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", 400},
        Refusal{"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nabc", 408},
        Refusal{"GET / HTTP/1.1\r\nHost: x\r\n", 408},
        Refusal{"GET / HTTP/9.9\r\n\r\n", 400},
        Refusal{"nonsense\r\n\r\n", 400},
        Refusal{"POST /refused HTTP/1.1\r\nContent-Length: 5\r\n\r\nab", 404}));

TEST_F(Transport, RefusesTruncatedBodies) {
  Client client(transport_.port());
  client.send("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nabc");
  client.close_writing();
  EXPECT_THAT(client.read_all(), StartsWith("HTTP/1.1 400"));
}

TEST_F(Transport, RefusesHeadFloods) {
  Client client(transport_.port());
  client.send("GET / HTTP/1.1\r\n");
  for (int i = 0; i < 3000; ++i)
    client.send("X-Flood-" + std::to_string(i) + ": 0123456789012345\r\n");
  EXPECT_THAT(client.read_all(), StartsWith("HTTP/1.1 431"));
}

TEST_F(Transport, CountsTheTimeOfTricklingBodiesAsAWhole) {
  Client client(transport_.port());
  client.send("POST / HTTP/1.1\r\nContent-Length: 900\r\n\r\n");
  auto start = std::chrono::steady_clock::now();
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
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST_F(Transport, NoticesWhenAStreamsClientLeaves) {
  {
    Client client(transport_.port());
    client.send("GET /stream HTTP/1.1\r\n\r\n");
    EXPECT_THAT(client.read_some(), StartsWith("HTTP/1.1 200"));
  }
  for (int i = 0; i < 1000 && !application_.client_left; ++i)
    std::this_thread::sleep_for(milliseconds(5));
  EXPECT_TRUE(application_.client_left);
}

TEST_F(Transport, ServesOthersWhileSomeAreSlow) {
  std::vector<std::unique_ptr<Client>> slow;
  for (int i = 0; i < 6; ++i) {
    slow.push_back(std::make_unique<Client>(transport_.port()));
    slow.back()->send("POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nx");
  }
  Client quick(transport_.port());
  quick.send("GET /quick HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(quick.read_all(), HasSubstr("GET /quick"));
}

TEST_F(Transport, RefusesConnectionsBeyondItsLimit) {
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<Client>(transport_.port()));
    clients.back()->send("GET / HTTP/1.1\r\n\r\n");
    EXPECT_THAT(clients.back()->read_some(), StartsWith("HTTP/1.1 200"));
  }
  Client extra(transport_.port());
  extra.send("GET / HTTP/1.1\r\n\r\n");
  EXPECT_THAT(extra.read_all(), StartsWith("HTTP/1.1 503"));
}

TEST_F(Transport, SurvivesUnfinishedConnections) {
  for (int i = 0; i < 50; ++i) Client client(transport_.port());
  Client client(transport_.port());
  client.send("HEAD /h HTTP/1.1\r\nConnection: close\r\n\r\n");
  std::string all = client.read_all();
  EXPECT_THAT(all, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(all, Not(HasSubstr("HEAD /h")));
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

}  // namespace

}  // namespace droidspeak
