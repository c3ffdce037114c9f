// For tests: real redis-server processes on loopback, started and stopped with the object.
#pragma once

#include <chrono>
#include <csignal>
#include <filesystem>
#include <random>
#include <stdexcept>
#include <string>
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

#include "base/test_wait.h"
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

inline bool is_free_port(uint16_t port) {
  int made = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  bool is_bound = bind(made, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(made);
  return is_bound;
}

// Below those that the system gives to connections, so that a server which is started again finds
// its port free; so is the second one of a cluster's server, 10000 above.
inline uint16_t server_port() {
  constexpr uint16_t kLowest = 12000;
  constexpr uint16_t kHighest = 22000;
  constexpr uint16_t kToSecond = 10000;
  std::random_device chance;
  std::uniform_int_distribution<int> ports(kLowest, kHighest);
  while (true) {
    auto port = static_cast<uint16_t>(ports(chance));
    if (is_free_port(port) && is_free_port(port + kToSecond)) return port;
  }
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

  explicit RedisProcess(Options options) : options_(std::move(options)) {
    constexpr int kTries = 10;  // another test may have taken the port in between
    for (int i = 0; i < kTries && process_ < 0; ++i) {
      port_ = server_port();
      folder_ = std::filesystem::temp_directory_path() /
                fmt::format("droidspeak-redis-{}-{}", getpid(), port_);
      std::filesystem::create_directories(folder_);
      if (!try_to_start()) std::filesystem::remove_all(folder_);
    }
    if (process_ < 0) throw std::runtime_error("redis-server does not start");
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
    if (!try_to_start())
      throw std::runtime_error(fmt::format("redis-server does not start on port {}", port_));
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
  std::vector<std::string> command_line() const {
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
    return words;
  }

  // False when it has ended at once, as it does when its port is taken.
  bool try_to_start() {
    std::vector<std::string> words = command_line();
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    process_ = fork();
    if (process_ == 0) {  // nothing may be allocated here: another thread may have held the heap
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that crashes leaves no server behind
      int nowhere = open("/dev/null", O_WRONLY);
      dup2(nowhere, 1);
      dup2(nowhere, 2);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    auto has_ended = [&] { return waitpid(process_, nullptr, WNOHANG) == process_; };
    bool is_there = false;
    wait_until(
        [&] {
          if (has_ended()) process_ = -1;
          is_there = process_ > 0 && command({"PING"}).kind == RedisReply::Kind::kStatus;
          return is_there || process_ < 0;
        },
        fmt::format("redis-server on port {}", port_));
    return is_there;
  }

  const Options options_;
  uint16_t port_ = 0;
  std::filesystem::path folder_;
  pid_t process_ = -1;
};

}  // namespace droidspeak
