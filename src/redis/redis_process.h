// For tests: real redis-server processes on loopback, started and stopped with the object.
#pragma once

#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "redis/connection.h"

namespace droidspeak {

inline std::string redis_server_program() {
  for (const char* path : {"/usr/bin/redis-server", "/usr/local/bin/redis-server",
                           "/usr/bin/valkey-server", "/usr/local/bin/valkey-server"}) {
    if (access(path, X_OK) == 0) return path;
  }
  return "";
}

// tests/expected_skips.txt knows these words.
#define SKIP_WITHOUT_REDIS() \
  if (redis_server_program().empty()) GTEST_SKIP() << "no redis-server on this machine"

// Low enough that a server of a cluster has its second port, which is 10000 above.
inline uint16_t free_port() {
  constexpr uint16_t kHighest = 55535;
  int made = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(made, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(made, reinterpret_cast<sockaddr*>(&address), &size), 0);
  uint16_t port = ntohs(address.sin_port);
  uint16_t chosen = port <= kHighest ? port : free_port();  // while this one is taken
  close(made);
  return chosen;
}

class RedisProcess {
 public:
  struct Options {
    std::vector<std::string> arguments{};
    std::string password{};               // that the test's own commands use
    std::filesystem::path certificate{};  // with `key`: TLS only
    std::filesystem::path key{};
  };

  RedisProcess() : RedisProcess(Options{}) {}

  explicit RedisProcess(Options options) : options_(std::move(options)), port_(free_port()) {
    folder_ = std::filesystem::temp_directory_path() /
              fmt::format("droidspeak-redis-{}-{}", getpid(), port_);
    std::filesystem::create_directories(folder_);
    start();
  }

  ~RedisProcess() {
    kill_now();
    std::filesystem::remove_all(folder_);
  }

  RedisProcess(const RedisProcess&) = delete;
  RedisProcess& operator=(const RedisProcess&) = delete;

  uint16_t port() const { return port_; }

  RedisAddress address() const {
    return {options_.certificate.empty() ? "127.0.0.1" : "localhost", port_};
  }

  RedisServers servers() const {
    return {
        .addresses = {address()},
        .password = options_.password,
        .transport = options_.certificate.empty() ? RedisTransport::kPlain : RedisTransport::kTls,
        .ca_file = options_.certificate};
  }

  // Empty, on the same port.
  void start() {
    std::vector<std::string> words = {redis_server_program(),
                                      "--bind",
                                      "127.0.0.1",
                                      "--save",
                                      "",
                                      "--appendonly",
                                      "no",
                                      "--dir",
                                      folder_.string(),
                                      "--daemonize",
                                      "no",
                                      "--logfile",
                                      "server.log"};
    bool has_tls = !options_.certificate.empty();
    std::string plain_port = has_tls ? "0" : std::to_string(port_);
    words.insert(words.end(), {"--port", plain_port});
    if (has_tls) {
      words.insert(words.end(), {"--tls-port", std::to_string(port_), "--tls-cert-file",
                                 options_.certificate.string(), "--tls-key-file",
                                 options_.key.string(), "--tls-ca-cert-file",
                                 options_.certificate.string(), "--tls-auth-clients", "no"});
    }
    words.insert(words.end(), options_.arguments.begin(), options_.arguments.end());
    process_ = fork();
    if (process_ == 0) {
      std::vector<char*> arguments;
      for (std::string& word : words) arguments.push_back(word.data());
      arguments.push_back(nullptr);
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that crashes leaves no server behind
      int nowhere = open("/dev/null", O_WRONLY);
      dup2(nowhere, 1);
      dup2(nowhere, 2);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    for (int i = 0; i < 500; ++i) {
      if (command({"PING"}).kind == RedisReply::Kind::kStatus) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ADD_FAILURE() << "redis-server does not start on port " << port_;
  }

  void signal(int number) const { kill(process_, number); }

  void kill_now() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
    process_ = -1;
  }

  // Null, as a reply, when there is no answer.
  RedisReply command(const std::vector<std::string>& words) const {
    std::unique_ptr<TlsClient> tls;
    if (!options_.certificate.empty()) tls = std::make_unique<TlsClient>(options_.certificate);
    auto connection = RedisConnection::open(address(), servers(), tls.get(),
                                            StreamLimits{std::chrono::seconds(10)});
    if (!connection) return {};
    std::string text;
    append_command(text, std::vector<std::string_view>(words.begin(), words.end()));
    if (!(*connection)->send(text)) return {};
    Result<RedisReply> reply = (*connection)->read_reply();
    return reply ? *reply : RedisReply{};
  }

 private:
  const Options options_;
  const uint16_t port_;
  std::filesystem::path folder_;
  pid_t process_ = -1;
};

}  // namespace droidspeak
