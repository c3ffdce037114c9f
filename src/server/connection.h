// One client's socket, plain or TLS, with deadlines on everything: no call waits longer than it was
// told to, and every wait ends soon after the server stops. Used by one thread.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "server/tls.h"

namespace droidspeak {

class Connection {
 public:
  using Clock = std::chrono::steady_clock;

  enum class ReadStatus { kOk, kEnd, kTimeout };

  struct Patience {
    // How long a client may take nothing of an answer; and what it may keep us waiting for all of
    // it, beyond the time at the slowest rate.
    std::chrono::milliseconds write{30000};
    size_t min_bytes_per_second = 4096;
    // How long a client that has closed its own side is taken for one that waits for its answer.
    std::chrono::milliseconds half_closed{1000};
  };

  // Takes over the non-blocking `socket` and closes it when destroyed. `tls` may be null; both
  // references outlive this.
  Connection(int socket,
             const TlsContext* tls,
             const std::atomic<bool>& is_stopping,
             const Patience& patience);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // The TLS handshake; true at once for plain connections.
  bool shake_hands(Clock::time_point deadline);

  // Until buffered() has bytes. At once when it has some; kTimeout also when the server stops.
  ReadStatus fill(Clock::time_point deadline);

  // What has been read and not yet consumed.
  std::string_view buffered() const { return {buffer_.data() + begin_, end_ - begin_}; }

  void consume(size_t count) { begin_ += count; }

  // From here on the client's patience for writing counts anew. A client that closes its own side
  // may be gone or wait for its answer: `probe` is written to it after a while, to find out. It
  // must mean nothing to the client; empty: such a client counts as waiting.
  void begin_answer(std::string probe);

  void set_probe(std::string probe) { probe_ = std::move(probe); }

  // All of it. False when the client is gone or takes it too slowly, from then on for good.
  bool write(std::string_view bytes);

  // False once the client is gone or the server stops. With TLS a half-closed client is gone.
  bool is_open();

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
  void probe_half_closed();

  const int socket_;
  const std::atomic<bool>& is_stopping_;
  const Patience patience_;
  std::unique_ptr<ssl_st, FreeSsl> ssl_;
  Direction wanted_ = Direction::kRead;  // what TLS waits for
  std::array<char, 16384> buffer_;       // [begin_, end_) is read ahead
  size_t begin_ = 0;
  size_t end_ = 0;
  Clock::duration write_allowance_;  // what the client may still keep us waiting for this answer
  std::string probe_;
  std::optional<Clock::time_point> half_closed_at_;
  bool has_failed_ = false;
};

}  // namespace droidspeak
