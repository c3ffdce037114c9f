// One client's socket, plain or TLS, with deadlines on everything: no call waits longer than it was
// told to, and every wait ends soon after the server stops. Used by one thread.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "server/tls.h"

namespace droidspeak {

class Connection {
 public:
  using Clock = std::chrono::steady_clock;

  enum class ReadStatus { kOk, kEnd, kTimeout };

  // Takes over `socket` and closes it when destroyed. `tls` may be null; both references outlive
  // this.
  Connection(int socket, const TlsContext* tls, const std::atomic<bool>& is_stopping);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // The TLS handshake; true at once for plain connections.
  bool shake_hands(Clock::time_point deadline);

  // Until bytes can be read. False at the deadline, at the end, or when the server stops.
  bool wait_readable(Clock::time_point deadline);

  // Up to `size` bytes, at least one unless the status is kEnd or kTimeout.
  struct Bytes {
    ReadStatus status = ReadStatus::kOk;
    size_t count = 0;
  };

  Bytes read(char* target, size_t size, Clock::time_point deadline);

  // All of it, as long as the client keeps taking some every `stall_limit`. False when it is gone.
  bool write(std::string_view bytes);

  // True while the client holds its side open and the server goes on.
  bool is_open() const;

  // Tells the client that nothing more comes and discards what it still sends, so that it gets to
  // read the answer before its own writes fail.
  void linger(Clock::time_point deadline);

  std::string client_address() const;

 private:
  struct FreeSsl {
    void operator()(ssl_st* ssl) const;
  };
  enum class Direction { kRead, kWrite };

  bool wait(Direction direction, Clock::time_point deadline) const;
  // One read from the socket or TLS layer: > 0 bytes, 0 at the end, -1 when nothing is there yet.
  ssize_t receive(char* target, size_t size);
  ssize_t send_some(std::string_view bytes);
  Bytes fill(Clock::time_point deadline);

  static constexpr std::chrono::seconds kStallLimit{30};

  const int socket_;
  const std::atomic<bool>& is_stopping_;
  std::unique_ptr<ssl_st, FreeSsl> ssl_;
  Direction wanted_ = Direction::kRead;  // what TLS waits for
  std::array<char, 16384> buffer_;       // [begin_, end_) is read ahead
  size_t begin_ = 0;
  size_t end_ = 0;
  bool has_failed_ = false;
};

}  // namespace droidspeak
