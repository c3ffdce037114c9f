// Sockets that wait for clients, and how many of them the process may have.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include <sys/types.h>

namespace droidspeak {

// A listening, non-blocking socket.
class Listener {
 public:
  // Port 0: a free one. Throws Failure when the address cannot be used.
  static Listener on_port(const std::string& host, int port);
  // Only this user may connect. The file goes away with the listener; one that a server has left
  // behind is replaced. Throws Failure when a server listens there or it is no socket.
  static Listener on_path(const std::filesystem::path& path);

  ~Listener();
  Listener(Listener&& other) noexcept;
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int socket() const { return socket_; }

  int port() const { return port_; }  // 0 on a path

  // Wakes whoever waits for clients, for good.
  void stop() const;

 private:
  explicit Listener(int socket) : socket_(socket) {}

  int socket_;
  int port_ = 0;
  std::filesystem::path path_;
  std::pair<dev_t, ino_t> file_{};  // so that only our own is removed
};

// Lets this process open as many files as it may at all.
void raise_descriptor_limit();

// `wanted`, or fewer where the process may not open that many files and some for its caches.
int connections_within_limit(int wanted);

}  // namespace droidspeak
