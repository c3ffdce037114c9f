// A stream to a server, plain or with TLS, that never waits for long: every call gives up when
// nothing has moved for `stall`. One thread at a time, but for shut_down().
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include <sys/uio.h>

#include "base/result.h"
#include "redis/address.h"
#include "redis/tls.h"

namespace droidspeak {

class StreamSocket {
 public:
  // Without a TLS client: plain.
  static Result<std::unique_ptr<StreamSocket>> open(const RedisAddress& address,
                                                    const TlsClient* tls,
                                                    std::chrono::milliseconds stall);
  ~StreamSocket();
  StreamSocket(const StreamSocket&) = delete;
  StreamSocket& operator=(const StreamSocket&) = delete;

  // All of it.
  Result<void> write(std::span<const iovec> pieces);
  // At least one byte, into `first` and, where TLS does not stand between, on into `second`.
  Result<size_t> read(std::span<std::byte> first, std::span<std::byte> second);

  // Whether it is open with nothing to read, as it should be when no answer is due.
  bool is_quiet() const;

  // Whoever waits here, or will, gives up. Any thread, while this lives.
  void shut_down();

 private:
  StreamSocket(int socket, std::chrono::milliseconds stall) : socket_(socket), stall_(stall) {}

  Result<void> connect(const RedisAddress& address, const TlsClient* tls);
  Result<void> wait_for(short events);
  Result<void> write_tls(std::span<const std::byte> bytes);
  Result<size_t> read_tls(std::span<std::byte> bytes);
  Result<void> wait_for_tls(int result, const char* what);

  const int socket_;
  const std::chrono::milliseconds stall_;
  TlsClient::Session session_;
};

}  // namespace droidspeak
