// A stream to a server, plain or with TLS, that never waits for long: every call gives up when
// nothing has moved for a while, and so does a message that comes or goes too slowly as a whole.
// One thread at a time, but for shut_down().
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <sys/uio.h>

#include "base/result.h"
#include "redis/address.h"
#include "redis/tls.h"

namespace droidspeak {

struct StreamLimits {
  // NOLINTNEXTLINE: mostly there is nothing else to say
  StreamLimits(std::chrono::milliseconds stall_limit, std::function<bool()> wanted = {})
      : stall(stall_limit), is_wanted(std::move(wanted)) {}

  std::chrono::milliseconds stall;  // nothing has moved for this long
  // False: what waits for long gives up (kCancelled). May be empty.
  std::function<bool()> is_wanted;
};

class StreamSocket {
 public:
  // Without a TLS client: plain.
  static Result<std::unique_ptr<StreamSocket>> open(const RedisAddress& address,
                                                    const TlsClient* tls,
                                                    const StreamLimits& limits);
  ~StreamSocket();
  StreamSocket(const StreamSocket&) = delete;
  StreamSocket& operator=(const StreamSocket&) = delete;

  // A message begins: it may take `stall`, and longer only as far as bytes move.
  void begin_message();

  void set_wanted(std::function<bool()> is_wanted) { limits_.is_wanted = std::move(is_wanted); }

  // All of it.
  Result<void> write(std::span<const iovec> pieces);
  // At least one byte, into `first` and, where TLS does not stand between, on into `second`.
  Result<size_t> read(std::span<std::byte> first, std::span<std::byte> second);

  // Whether it is open with nothing to read, as it should be when no answer is due.
  bool is_quiet() const;

  // Whoever waits here, or will, gives up. Any thread, while this lives.
  void shut_down();

 private:
  using Time = std::chrono::steady_clock::time_point;

  StreamSocket(int socket, const StreamLimits& limits) : socket_(socket), limits_(limits) {}

  Result<void> connect(const RedisAddress& address, const TlsClient* tls);
  Time deadline_at(Time now) const;
  Result<void> wait_for(short events);
  Result<void> write_tls(std::span<const std::byte> bytes);
  Result<size_t> read_tls(std::span<std::byte> bytes);
  Result<void> wait_for_tls(int result, const char* what);

  const int socket_;
  StreamLimits limits_;
  TlsClient::Session session_;
  Time begun_ = std::chrono::steady_clock::now();  // the message
  std::chrono::milliseconds allowance_{0};         // for it, however little it is
  uint64_t moved_bytes_ = 0;                       // of it
};

}  // namespace droidspeak
