#include "server/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include "base/error.h"
#include "base/file.h"
#include "base/test_certificate.h"
#include "server/transport.h"
#include "server/transport_test_support.h"

namespace droidspeak {

namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class TlsClient {
 public:
  explicit TlsClient(int port)
      : client_(port), context_(SSL_CTX_new(TLS_client_method())), ssl_(SSL_new(context_)) {
    SSL_set_fd(ssl_, client_.socket());
    is_connected_ = SSL_connect(ssl_) == 1;
  }

  ~TlsClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }

  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  bool is_connected() const { return is_connected_; }

  void send(std::string_view bytes) {
    EXPECT_GT(SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size())), 0);
  }

  std::string read_some() {
    std::string piece(65536, '\0');
    int count = SSL_read(ssl_, piece.data(), static_cast<int>(piece.size()));
    piece.resize(count > 0 ? static_cast<size_t>(count) : 0);
    return piece;
  }

  std::string read_all() {
    std::string all;
    for (std::string piece = read_some(); !piece.empty(); piece = read_some()) all += piece;
    return all;
  }

 private:
  Client client_;
  SSL_CTX* context_;
  SSL* ssl_;
  bool is_connected_ = false;
};

class Tls : public testing::Test {
 protected:
  Tls() {
    write_certificate(folder_.path() / "crt", folder_.path() / "key");
    options_.port = 0;
    options_.read_timeout = milliseconds(1000);
    options_.max_connections = 2;
    options_.max_refusals = 2;
    options_.tls_certificate = folder_.path() / "crt";
    options_.tls_key = folder_.path() / "key";
    transport_ = std::make_unique<HttpTransport>(application_, options_, num_connections_);
  }

  TemporaryFolder folder_;
  EchoApplication application_;
  TransportOptions options_;
  std::atomic<int> num_connections_ = 0;
  std::unique_ptr<HttpTransport> transport_;
};

TEST_F(Tls, AnswersSeveralRequests) {
  TlsClient client(transport_->port());
  ASSERT_TRUE(client.is_connected());
  client.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.read_some(), HasSubstr("GET /1 "));
  client.send("POST /2 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi");
  EXPECT_THAT(client.read_all(), HasSubstr("POST /2 hi"));
}

TEST_F(Tls, GivesLargeAnswers) {
  TlsClient client(transport_->port());
  client.send("GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_GT(client.read_all().size(), size_t{8} << 20);
}

TEST_F(Tls, NoticesWhenAWaitingClientLeaves) {
  {
    TlsClient client(transport_->port());
    client.send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_TRUE(comes_true([&] { return application_.num_waiting == 1; }));
  }
  EXPECT_TRUE(comes_true([&] { return application_.client_left.load(); }));
}

TEST_F(Tls, RefusesPlainRequests) {
  Client client(transport_->port());
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.read_all(), testing::Not(HasSubstr("200")));
  EXPECT_EQ(application_.num_answered, 0);
}

TEST_F(Tls, EndsHandshakesThatTrickle) {
  Client client(transport_->port());
  std::atomic<bool> is_over = false;
  client.send(std::string_view("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11));
  std::thread trickle([&] {
    while (!is_over) {
      client.send("x");
      std::this_thread::sleep_for(milliseconds(20));
    }
  });
  EXPECT_EQ(client.read_all(), "");
  is_over = true;
  trickle.join();
}

TEST_F(Tls, TellsThoseBeyondTheLimitAndBoundsThem) {
  TlsClient first(transport_->port());
  TlsClient second(transport_->port());
  first.send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
  second.send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(comes_true([&] { return application_.num_waiting == 2; }));
  EXPECT_THAT(TlsClient(transport_->port()).read_all(), StartsWith("HTTP/1.1 503"));
  // Those who do not even shake hands are closed within seconds, or at once when there are several.
  Client silent(transport_->port());
  Client more(transport_->port());
  Client most(transport_->port());
  EXPECT_EQ(most.read_all(), "");
  EXPECT_EQ(silent.read_all(), "");
  EXPECT_EQ(more.read_all(), "");
  application_.may_answer = true;
  EXPECT_THAT(first.read_some(), StartsWith("HTTP/1.1 200"));
}

TEST_F(Tls, SpeaksNoOldProtocolAndKeepsNothingOfItsClients) {
  TlsContext context(folder_.path() / "crt", folder_.path() / "key");
  EXPECT_EQ(SSL_CTX_get_min_proto_version(context.get()), TLS1_2_VERSION);
  EXPECT_EQ(SSL_CTX_get_session_cache_mode(context.get()), SSL_SESS_CACHE_OFF);
  const auto wanted = SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                      SSL_MODE_RELEASE_BUFFERS;
  EXPECT_EQ(SSL_CTX_get_mode(context.get()) & wanted, wanted);
}

TEST_F(Tls, NamesTheFileThatIsWrong) {
  write_certificate(folder_.path() / "other", folder_.path() / "other_key");
  auto failure = [&](const std::filesystem::path& certificate, const std::filesystem::path& key) {
    try {
      TlsContext context(certificate, key);
    } catch (const Failure& thrown) {
      return thrown.error().message;
    }
    return std::string("none");
  };
  EXPECT_EQ(failure(folder_.path() / "crt", folder_.path() / "key"), "none");
  const auto missing = AllOf(HasSubstr("missing: "), HasSubstr("No such file or directory"));
  EXPECT_THAT(failure(folder_.path() / "missing", folder_.path() / "key"),
              AllOf(StartsWith("--tls-cert"), missing));
  EXPECT_THAT(failure(folder_.path() / "crt", folder_.path() / "missing"),
              AllOf(StartsWith("--tls-key"), missing));
  EXPECT_THAT(failure(folder_.path() / "crt", folder_.path() / "other_key"),
              HasSubstr("other_key"));
}

}  // namespace

}  // namespace droidspeak
