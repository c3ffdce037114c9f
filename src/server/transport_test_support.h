// An application that shows what the transport does, and clients that may misbehave.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/api_error.h"
#include "server/http.h"

namespace droidspeak {

// Looks again and again for at most half a minute.
template <class Condition>
bool comes_true(const Condition& condition) {
  for (int i = 0; i < 6000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

// Answers with what it was asked. /stream streams until the client leaves; /wait keeps the client
// waiting until `may_answer` or until it leaves; /large answers with 8 MiB, /flood streams large
// pieces; /refused is 404.
class EchoApplication final : public HttpApplication {
 public:
  std::optional<HttpResponse> screen(const HttpRequest& head) override {
    if (head.path != "/refused") return std::nullopt;
    return error_response(status_error(404, "refused"));
  }

  HttpResponse respond(HttpRequest& request) override {
    ++num_answered;
    HttpResponse response;
    response.content_type = "text/plain";
    response.body = request.method + " " + request.path + " " + request.body;
    if (request.path == "/parse") wait(request);
    request.release_body();
    if (request.path == "/wait") wait(request);
    if (request.path == "/large") response.body = std::string(size_t{8} << 20, 'x');
    if (request.path == "/stream" || request.path == "/flood") {
      std::string piece = "data: tick\n\n";
      if (request.path == "/flood") piece = std::string(size_t{1} << 20, 'x');
      response.content_type = "text/event-stream";
      response.stream = [this, piece](StreamWriter& writer) { stream(writer, piece); };
    }
    return response;
  }

  HttpResponse refuse(const HttpRequest& /*head*/,
                      int status,
                      const std::string& message) override {
    return error_response(status_error(status, message));
  }

  std::atomic<int> num_answered = 0;
  std::atomic<int> num_waiting = 0;
  std::atomic<bool> may_answer = false;
  std::atomic<bool> client_left = false;

 private:
  void wait(const HttpRequest& request) {
    ++num_waiting;
    while (!may_answer && !client_left) {
      if (!request.is_connected()) client_left = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    --num_waiting;
  }

  void stream(StreamWriter& writer, const std::string& piece) {
    while (writer.is_connected() && !may_answer) {
      if (!writer.write(piece)) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (!may_answer) client_left = true;
  }
};

class Client {
 public:
  Client() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {}

  explicit Client(int port) : Client() { connect(port); }

  void connect(int port) const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }

  explicit Client(const std::filesystem::path& path) : socket_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.native().copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }

  ~Client() { ::close(socket_); }

  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  int socket() const { return socket_; }

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(count));
    }
  }

  void close_writing() { ::shutdown(socket_, SHUT_WR); }

  std::string read_some(size_t max_bytes = 65536) {
    std::string piece(max_bytes, '\0');
    ssize_t count = ::recv(socket_, piece.data(), piece.size(), 0);
    piece.resize(count > 0 ? static_cast<size_t>(count) : 0);
    return piece;
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

}  // namespace droidspeak
