#include "server/connection.h"

#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/file.h"
#include "base/test_certificate.h"

namespace droidspeak {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Two ends of a stream with little room between them: `ours` as the server has it, and the
// client's.
class ConnectionTest : public testing::Test {
 protected:
  ConnectionTest() {
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends_), 0);
    int bytes = 8192;
    ::setsockopt(ends_[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    ::fcntl(ends_[0], F_SETFL, O_NONBLOCK);
  }

  ~ConnectionTest() override { close_client(); }

  int ours() const { return ends_[0]; }

  int client() const { return ends_[1]; }

  void close_client() {
    if (ends_[1] >= 0) ::close(ends_[1]);
    ends_[1] = -1;
  }

  std::atomic<bool> is_stopping_ = false;

 private:
  int ends_[2] = {-1, -1};
};

TEST_F(ConnectionTest, IsOpenUntilTheServerStops) {
  Connection connection(ours(), nullptr, is_stopping_, {});
  EXPECT_TRUE(connection.is_open());
  is_stopping_ = true;
  EXPECT_FALSE(connection.is_open());
}

TEST_F(ConnectionTest, IsClosedForGoodOnceAWriteHasFailed) {
  Connection connection(ours(), nullptr, is_stopping_,
                        {.write = milliseconds(1), .min_bytes_per_second = size_t{1} << 30});
  EXPECT_TRUE(connection.write("hello"));
  EXPECT_TRUE(connection.is_open());
  EXPECT_FALSE(connection.write(std::string(1 << 20, 'x'))) << "the client reads nothing";
  EXPECT_FALSE(connection.is_open());
  EXPECT_FALSE(connection.write("more"));
}

TEST_F(ConnectionTest, IsClosedWhenTheClientIs) {
  Connection connection(ours(), nullptr, is_stopping_, {});
  close_client();
  EXPECT_FALSE(connection.is_open());
}

// Never silent for long, but all in all longer than it may be: 64 KiB in steps of 1 KiB take it 64
// naps, and half of that is its allowance.
TEST_F(ConnectionTest, EndsWithAClientThatTakesLittleAtATime) {
  const milliseconds nap(10);
  Connection connection(ours(), nullptr, is_stopping_,
                        {.write = 32 * nap, .min_bytes_per_second = size_t{1} << 30});
  std::atomic<bool> is_over = false;
  std::thread reader([&] {
    char piece[1024];
    while (!is_over) {
      ::recv(client(), piece, sizeof piece, MSG_DONTWAIT);
      std::this_thread::sleep_for(nap);
    }
  });
  EXPECT_FALSE(connection.write(std::string(size_t{64} << 10, 'x')));
  is_over = true;
  reader.join();
}

TEST_F(ConnectionTest, WaitsForAClientThatIsSlowWithinItsRate) {
  Connection connection(ours(), nullptr, is_stopping_,
                        {.write = seconds(60), .min_bytes_per_second = 1});
  const size_t bytes = size_t{64} << 10;
  std::thread reader([&] {
    char piece[1024];
    for (size_t taken = 0; taken < bytes;) {
      ssize_t count = ::recv(client(), piece, sizeof piece, 0);
      if (count <= 0) return;
      taken += static_cast<size_t>(count);
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  EXPECT_TRUE(connection.write(std::string(bytes, 'x')));
  reader.join();
}

// OpenSSL keeps errors in a queue per thread, and takes any that is there for one of this call.
TEST_F(ConnectionTest, IsNotMisledByErrorsThatOthersLeft) {
  TemporaryFolder folder;
  write_certificate(folder.path() / "crt", folder.path() / "key");
  TlsContext tls(folder.path() / "crt", folder.path() / "key");
  const size_t bytes = size_t{256} << 10;
  std::atomic<bool> may_send = false;
  size_t received = 0;
  std::thread peer([&] {
    std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                              SSL_CTX_free);
    std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), SSL_free);
    SSL_set_fd(ssl.get(), client());
    if (SSL_connect(ssl.get()) != 1) return;
    while (!may_send) std::this_thread::sleep_for(milliseconds(1));
    std::this_thread::sleep_for(milliseconds(20));
    SSL_write(ssl.get(), "hello", 5);
    char piece[4096];
    for (int count = 0; received < bytes; received += static_cast<size_t>(count)) {
      std::this_thread::sleep_for(milliseconds(1));
      count = SSL_read(ssl.get(), piece, sizeof piece);
      if (count <= 0) return;
    }
  });
  {
    Connection connection(ours(), &tls, is_stopping_, {});
    auto deadline = Connection::Clock::now() + seconds(60);
    auto leave_error = [] { ERR_raise(ERR_LIB_SSL, ERR_R_PASSED_NULL_PARAMETER); };
    leave_error();
    EXPECT_TRUE(connection.shake_hands(deadline));
    leave_error();
    may_send = true;
    EXPECT_EQ(connection.fill(deadline), Connection::ReadStatus::kOk);
    EXPECT_EQ(connection.buffered(), "hello");
    leave_error();
    EXPECT_TRUE(connection.write(std::string(bytes, 'x')));
  }
  peer.join();
  EXPECT_EQ(received, bytes);
  ERR_clear_error();
}

}  // namespace

}  // namespace droidspeak
