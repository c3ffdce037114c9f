#include "server/listener.h"

#include <cerrno>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/file.h"
#include "server/connection_threads.h"
#include "server/transport.h"
#include "server/transport_test_support.h"

namespace droidspeak {

namespace {

using testing::HasSubstr;

std::string failure_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Failure& failure) {
    return failure.error().message;
  }
  return "no failure";
}

TEST(Listener, TakesAFreePort) {
  EXPECT_GT(Listener::on_port("127.0.0.1", 0).port(), 0);
  EXPECT_GT(Listener::on_port("localhost", 0).port(), 0);
}

TEST(Listener, NamesAnAddressThatIsNoneOfOurs) {
  EXPECT_THAT(failure_of([] { Listener::on_port("256.1.1.1", 0); }), HasSubstr("256.1.1.1:0"));
}

class SocketPath : public testing::Test {
 protected:
  TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "socket";
};

TEST_F(SocketPath, IsOnlyForThisUserAndGoesAway) {
  {
    Listener listener = Listener::on_path(path_);

    struct stat status {};

    ASSERT_EQ(::stat(path_.c_str(), &status), 0);
    EXPECT_TRUE(S_ISSOCK(status.st_mode));
    EXPECT_EQ(status.st_mode & 0777, 0600);
    Client client(path_);
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(SocketPath, IsRefusedWhileAnotherServerListens) {
  Listener listener = Listener::on_path(path_);
  EXPECT_THAT(failure_of([&] { Listener::on_path(path_); }), HasSubstr("another server"));
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(SocketPath, IsReplacedWhenAServerHasLeftItBehind) {
  int left = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path_.native().copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(left, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ::close(left);
  ASSERT_TRUE(std::filesystem::exists(path_));
  Listener listener = Listener::on_path(path_);
  Client client(path_);
}

TEST_F(SocketPath, NeverReplacesAFile) {
  std::ofstream(path_) << "precious";
  EXPECT_THAT(failure_of([&] { Listener::on_path(path_); }), HasSubstr("there is a file"));
  EXPECT_EQ(read_file(path_), "precious");
}

TEST_F(SocketPath, LeavesAnothersSocketThere) {
  std::filesystem::path aside = folder_.path() / "aside";
  {
    Listener first = Listener::on_path(path_);
    std::filesystem::rename(path_, aside);
    Listener second = Listener::on_path(path_);
    std::filesystem::rename(path_, folder_.path() / "second");
    std::filesystem::rename(aside, path_);
  }
  // The second found the first's file where its own had been.
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "second"));
}

TEST_F(SocketPath, IsBounded) {
  std::filesystem::path path = folder_.path() / std::string(200, 'x');
  EXPECT_THAT(failure_of([&] { Listener::on_path(path); }), HasSubstr("1 to 107"));
}

// Sets the number of files this process may open, and back.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t soft) {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit limit{soft, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }

  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

  rlim_t hard() const { return before_.rlim_max; }

 private:
  rlimit before_{};
};

TEST(Descriptors, LeaveRoomForOtherFiles) {
  DescriptorLimit limit(1024);
  EXPECT_EQ(connections_within_limit(1024), 768);
  EXPECT_EQ(connections_within_limit(100), 100);
}

TEST(Descriptors, AreNeverAllForOtherFiles) {
  DescriptorLimit limit(64);
  EXPECT_EQ(connections_within_limit(1024), 32);
}

TEST(Descriptors, AreRaisedToWhatIsAllowed) {
  DescriptorLimit limit(64);
  raise_descriptor_limit();
  rlimit now{};
  getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_EQ(now.rlim_cur, limit.hard());
}

// A client that comes while there is no descriptor for it is answered once there is one.
TEST(Descriptors, ShortageIsSurvived) {
  EchoApplication application;
  TransportOptions options;
  options.port = 0;
  std::atomic<int> num_connections = 0;
  HttpTransport transport(application, options, num_connections);
  Client late;
  {
    int next = ::dup(late.socket());
    ::close(next);
    DescriptorLimit limit(static_cast<rlim_t>(next));
    EXPECT_EQ(::dup(late.socket()), -1);
    late.connect(transport.port());
    late.send("GET /late HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(num_connections, 0);
  }
  EXPECT_THAT(late.read_all(), HasSubstr("GET /late "));
}

TEST(ConnectionThreads, StartsNoMoreThanItMay) {
  std::atomic<bool> may_end = false;
  std::atomic<int> num_run = 0;
  ConnectionThreads threads(2);
  auto task = [&] {
    ++num_run;
    while (!may_end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  EXPECT_TRUE(threads.start(task));
  EXPECT_TRUE(threads.start(task));
  EXPECT_FALSE(threads.start(task));
  may_end = true;
  threads.wait();
  EXPECT_EQ(num_run, 2);
  EXPECT_TRUE(threads.start(task));
}

}  // namespace

}  // namespace droidspeak
