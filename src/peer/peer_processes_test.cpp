// A server, or a client, in a process of its own that is killed, stopped and continued while it is
// read from, or reads, over TCP and over shared memory.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <thread>

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/test_wait.h"
#include "peer/test_nodes.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

// UCX 1.13 sometimes leaves a hundred bytes behind for a client that was killed.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" const char* __lsan_default_suppressions();

extern "C" const char* __lsan_default_suppressions() {
  return "leak:libucs.so\n";
}

namespace droidspeak {
namespace {

using Status = PeerReadStatus;

constexpr size_t kEntryBytes = 50000;
constexpr size_t kNumEntries = 400;
constexpr auto kSays = "DROIDSPEAK_TEST_PEER_SAYS";    // descriptor for the child's address
constexpr auto kReads = "DROIDSPEAK_TEST_PEER_READS";  // address of whom the child reads from

// The child's part: not a test, run by ServerProcess.
TEST(PeerProcess, DISABLED_ServesUntilKilled) {
  int says = std::atoi(std::getenv(kSays));
  std::vector<size_t> sizes(kNumEntries, kEntryBytes);
  PeerServer server({.listen = "127.0.0.1:0", .secret = kSecret}, test_source(sizes));
  std::string line = server.address() + "\n";
  check(write(says, line.data(), line.size()) == static_cast<ssize_t>(line.size()), "is heard");
  while (true) pause();
}

// Likewise, run by ClientProcess.
TEST(PeerProcess, DISABLED_ReadsUntilKilled) {
  PeerClient client(patient_options(kSecret));
  while (true) read_and_wait(client, {std::getenv(kReads), test_items(kNumEntries, kEntryBytes)});
}

// Runs a disabled test of this program.
class Child {
 public:
  explicit Child(const std::string& test) {
    std::string self = std::filesystem::read_symlink("/proc/self/exe");
    std::vector<std::string> words = {self, "--gtest_also_run_disabled_tests", "--gtest_brief=1",
                                      "--gtest_filter=PeerProcess.DISABLED_" + test};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    check(posix_spawn(&pid_, self.c_str(), nullptr, nullptr, arguments.data(), environ) == 0,
          "a process");
  }

  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  ~Child() { end(); }

  void signal(int number) const { ::kill(pid_, number); }

  void end() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
};

class ServerProcess {
 public:
  ServerProcess() {
    int pipe_ends[2];
    check(pipe(pipe_ends) == 0, "a pipe");
    setenv(kSays, std::to_string(pipe_ends[1]).c_str(), 1);
    child_.emplace("ServesUntilKilled");
    ::close(pipe_ends[1]);
    char letter = 0;
    while (read(pipe_ends[0], &letter, 1) == 1 && letter != '\n') address_ += letter;
    ::close(pipe_ends[0]);
  }

  void signal(int number) const { child_->signal(number); }

  void end() { child_->end(); }

  const std::string& address() const { return address_; }

 private:
  std::optional<Child> child_;
  std::string address_;
};

class ClientProcess {
 public:
  explicit ClientProcess(const std::string& server) {
    setenv(kReads, server.c_str(), 1);
    child_.emplace("ReadsUntilKilled");
  }

  void signal(int number) const { child_->signal(number); }

  void end() { child_->end(); }

 private:
  std::optional<Child> child_;
};

class PeerProcesses : public testing::TestWithParam<const char*> {
 protected:
  // UCX leaves shared memory out where it has to notice that the other is gone, unless told so.
  void SetUp() override {
    setenv("UCX_TLS", GetParam() == std::string("tcp") ? "tcp" : "all", 1);
    setenv("UCX_MM_ERROR_HANDLING", GetParam() == std::string("tcp") ? "n" : "y", 1);
  }

  void TearDown() override {
    unsetenv("UCX_TLS");
    unsetenv("UCX_MM_ERROR_HANDLING");
  }

  static PeerClientOptions hurried_options() {
    PeerClientOptions options = patient_options(kSecret);
    options.connect_deadline = std::chrono::milliseconds(300);
    options.stall = std::chrono::milliseconds(300);
    return options;
  }

  static void expect_all_here(const std::vector<WaitingSink::Answer>& answers) {
    for (size_t i = 0; i < answers.size(); ++i) {
      EXPECT_EQ(answers[i].times, 1);
      EXPECT_TRUE(answers[i].bytes == test_entry(i, kEntryBytes)) << "entry " << i;
    }
  }

  // Each done once, and right where it is here.
  static void expect_right_or_lost(const std::vector<WaitingSink::Answer>& answers) {
    for (size_t i = 0; i < answers.size(); ++i) {
      EXPECT_EQ(answers[i].times, 1);
      if (answers[i].status == Status::kHere) {
        EXPECT_TRUE(answers[i].bytes == test_entry(i, kEntryBytes));
      } else {
        EXPECT_EQ(answers[i].status, Status::kLost);
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Transports,
                         PeerProcesses,
                         testing::Values("tcp", "shared_memory"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_P(PeerProcesses, ReadFromEachOther) {
  ServerProcess server;
  PeerClient client(patient_options(kSecret));
  expect_all_here(read_and_wait(client, {server.address(), test_items(kNumEntries, kEntryBytes)}));
}

TEST_P(PeerProcesses, KilledWhileItIsReadFrom) {
  for (size_t after : {size_t{0}, size_t{1}, size_t{50}}) {
    ServerProcess server;
    PeerClient client(patient_options(kSecret));
    auto sink = std::make_shared<WaitingSink>(kNumEntries);
    client.read(server.address(), test_items(kNumEntries, kEntryBytes), std::chrono::minutes(10),
                sink);
    spin_until([&] { return sink->num_done() >= after; });
    server.end();
    expect_right_or_lost(sink->wait());
  }
}

TEST_P(PeerProcesses, StoppedWhileItIsReadFromAndContinued) {
  ServerProcess server;
  PeerClient client(hurried_options());
  auto sink = std::make_shared<WaitingSink>(kNumEntries);
  client.read(server.address(), test_items(kNumEntries, kEntryBytes), std::chrono::minutes(10),
              sink);
  spin_until([&] { return sink->num_done() > 0; });
  server.signal(SIGSTOP);
  expect_right_or_lost(sink->wait());
  // Stopped still: each read costs no more than its deadline.
  for (int i = 0; i < 3; ++i) {
    auto answers = read_and_wait(
        client, {server.address(), test_items(2, kEntryBytes), std::chrono::milliseconds(50)});
    for (const auto& answer : answers) EXPECT_EQ(answer.status, Status::kLost);
  }
  server.signal(SIGCONT);
  expect_all_here(
      read_until_answered(client, {server.address(), test_items(kNumEntries, kEntryBytes)}));
}

TEST_P(PeerProcesses, AClientOfAStoppedServerCanGo) {
  ServerProcess server;
  auto sink = std::make_shared<WaitingSink>(kNumEntries);
  {
    PeerClient client(patient_options(kSecret));
    expect_all_here(read_and_wait(client, {server.address(), test_items(1, kEntryBytes)}));
    server.signal(SIGSTOP);
    client.read(server.address(), test_items(kNumEntries, kEntryBytes), std::chrono::minutes(5),
                sink);
  }
  EXPECT_EQ(sink->num_done(), kNumEntries);
}

// The end of the connection at the door is the client's, whatever carries the bytes.
TEST_P(PeerProcesses, AClientThatIsKilledIsForgotten) {
  for (int i = 0; i < 3; ++i) {
    PeerServer server({.listen = "127.0.0.1:0", .secret = kSecret},
                      test_source(std::vector<size_t>(kNumEntries, kEntryBytes)));
    ClientProcess client(server.address());
    wait_until([&] { return server.counters().bytes > 0; }, "a client that reads");
    client.end();
    wait_until([&] { return server.counters().clients == 0; }, "the end of the client");
  }
}

// Over TCP only, UCX's own choice where it has to notice that the other side is gone: over shared
// memory a server may hear nobody any more (docs/decisions/013-ucx-between-nodes.md).
class ClientProcesses : public PeerProcesses {};

INSTANTIATE_TEST_SUITE_P(Transports,
                         ClientProcesses,
                         testing::Values("tcp"),
                         [](const auto& instance) { return std::string(instance.param); });

// When a reply could not be sent to its end, UCX keeps the connection and would write to it; then
// it ends.
TEST_P(ClientProcesses, ThatStopAndAreKilledCostOthersNothing) {
  for (const char* name : {"UCX_TCP_SNDBUF", "UCX_TCP_RCVBUF"}) setenv(name, "64k", 1);
  PeerServer server(
      {.listen = "127.0.0.1:0", .secret = kSecret, .stall = std::chrono::milliseconds(300)},
      test_source(std::vector<size_t>(kNumEntries, kEntryBytes)));
  for (int i = 0; i < 3; ++i) {
    ClientProcess client(server.address());
    const PeerServerCounters before = server.counters();
    wait_until([&] { return server.counters().bytes > before.bytes; });
    // It may stop with nothing on its way; then it stops again.
    auto next_turn = std::chrono::steady_clock::now();
    bool is_stopped = false;
    wait_until([&] {
      if (std::chrono::steady_clock::now() >= next_turn) {
        is_stopped = !is_stopped;
        client.signal(is_stopped ? SIGSTOP : SIGCONT);
        next_turn += std::chrono::milliseconds(is_stopped ? 1000 : 50);
      }
      return server.counters().stalled > before.stalled && server.counters().clients == 0;
    });
    client.end();
    PeerClient other(patient_options(kSecret));
    expect_all_here(read_and_wait(other, {server.address(), test_items(9, kEntryBytes)}));
  }
  for (const char* name : {"UCX_TCP_SNDBUF", "UCX_TCP_RCVBUF"}) unsetenv(name);
}

TEST_P(ClientProcesses, ThatAreKilledCostOthersNothing) {
  PeerServer server({.listen = "127.0.0.1:0", .secret = kSecret},
                    test_source(std::vector<size_t>(kNumEntries, kEntryBytes)));
  for (int i = 0; i < 10; ++i) {
    ClientProcess client(server.address());
    const uint64_t bytes = server.counters().bytes;
    wait_until([&] { return server.counters().bytes > bytes; }, "a client that reads");
    client.end();
    wait_until([&] { return server.counters().clients == 0; }, "the end of the client");
  }
  PeerClient other(patient_options(kSecret));
  expect_all_here(read_and_wait(other, {server.address(), test_items(9, kEntryBytes)}));
}

TEST_P(PeerProcesses, AServerThatIsStoppedBeforeItIsMetIsLost) {
  ServerProcess server;
  server.signal(SIGSTOP);
  PeerClient client(hurried_options());
  auto answers = read_and_wait(
      client, {server.address(), test_items(2, kEntryBytes), std::chrono::milliseconds(100)});
  for (const auto& answer : answers) EXPECT_EQ(answer.status, Status::kLost);
  server.signal(SIGCONT);
  expect_all_here(read_until_answered(client, {server.address(), test_items(9, kEntryBytes)}));
}

}  // namespace
}  // namespace droidspeak
