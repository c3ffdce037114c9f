#include "redis/socket.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace droidspeak {
namespace {

constexpr size_t kMaxPieces = 64;  // of one system call
constexpr size_t kTlsPieceBytes = size_t{64} << 10;
// Connecting, a TLS handshake and logging in are some messages to and fro.
constexpr int kOpeningStalls = 4;
constexpr uint64_t kLowestRate = uint64_t{64} << 10;  // bytes per second
constexpr std::chrono::milliseconds kLook{50};        // how often it is asked who still wants it

Error failed(const char* what) {
  return {ErrorCode::kUnavailable, fmt::format("{}: {}", what, std::strerror(errno))};
}

struct FreeAddresses {
  void operator()(addrinfo* found) const { freeaddrinfo(found); }
};

bool has_to_wait() {
  return errno == EAGAIN || errno == EWOULDBLOCK;
}

}  // namespace

StreamSocket::~StreamSocket() {
  session_.reset();
  close(socket_);
}

Result<std::unique_ptr<StreamSocket>> StreamSocket::open(const RedisAddress& address,
                                                         const TlsClient* tls,
                                                         const StreamLimits& limits) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  int code = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list);
  if (code != 0) return Error{ErrorCode::kUnavailable, gai_strerror(code)};
  std::unique_ptr<addrinfo, FreeAddresses> found(list);
  Error last{ErrorCode::kUnavailable, "no address"};
  for (addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    int made = socket(one->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (made < 0) {  // e.g. a machine without IPv6
      last = failed("socket");
      continue;
    }
    std::unique_ptr<StreamSocket> stream(new StreamSocket(made, limits));
    stream->allowance_ = kOpeningStalls * limits.stall;
    int on = 1;
    setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (::connect(made, one->ai_addr, one->ai_addrlen) != 0 && errno != EINPROGRESS) {
      last = failed("connect");
      continue;
    }
    if (Result<void> connected = stream->connect(address, tls); !connected) {
      last = connected.error();
      continue;
    }
    return stream;
  }
  return last;
}

Result<void> StreamSocket::connect(const RedisAddress& address, const TlsClient* tls) {
  if (Result<void> ready = wait_for(POLLOUT); !ready) return ready;
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(socket_, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) {
    errno = error;
    return failed("connect");
  }
  if (tls == nullptr) return {};
  session_ = tls->make_session(socket_, address.host);
  if (!session_) return Error{ErrorCode::kUnavailable, "TLS: " + last_tls_error()};
  while (true) {
    ERR_clear_error();
    int result = SSL_do_handshake(session_.get());
    if (result == 1) return {};
    if (Result<void> ready = wait_for_tls(result, "TLS handshake"); !ready) return ready;
  }
}

void StreamSocket::begin_message() {
  begun_ = std::chrono::steady_clock::now();
  allowance_ = limits_.stall;
  moved_bytes_ = 0;
}

StreamSocket::Time StreamSocket::deadline_at(Time now) const {
  auto for_bytes = std::chrono::milliseconds(moved_bytes_ * 1000 / kLowestRate);
  return std::min(now + limits_.stall, begun_ + allowance_ + for_bytes);
}

Result<void> StreamSocket::wait_for(short events) {
  using std::chrono::milliseconds;
  auto now = std::chrono::steady_clock::now();
  const Time deadline = deadline_at(now);
  while (true) {
    if (limits_.is_wanted && now - begun_ >= kLook && !limits_.is_wanted())
      return Error{ErrorCode::kCancelled, "nobody waits for it any more"};
    auto left = std::chrono::ceil<milliseconds>(deadline - now);
    pollfd wanted{socket_, events, 0};
    int ready =
        poll(&wanted, 1, static_cast<int>(std::clamp(left, milliseconds(0), kLook).count()));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return failed("poll");
    now = std::chrono::steady_clock::now();
    if (now < deadline) continue;
    return Error{ErrorCode::kUnavailable,
                 fmt::format("nothing moved for {} ms, or {} bytes in {} ms", limits_.stall.count(),
                             moved_bytes_, std::chrono::ceil<milliseconds>(now - begun_).count())};
  }
}

Result<void> StreamSocket::wait_for_tls(int result, const char* what) {
  switch (SSL_get_error(session_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return wait_for(POLLIN);
    case SSL_ERROR_WANT_WRITE:
      return wait_for(POLLOUT);
    default:
      return Error{ErrorCode::kUnavailable, fmt::format("{}: {}", what, last_tls_error())};
  }
}

Result<void> StreamSocket::write(std::span<const iovec> pieces) {
  std::vector<iovec> left(pieces.begin(), pieces.end());
  if (session_) {
    for (const iovec& piece : left) {
      auto bytes = std::span(static_cast<const std::byte*>(piece.iov_base), piece.iov_len);
      if (Result<void> written = write_tls(bytes); !written) return written;
    }
    return {};
  }
  size_t first = 0;
  while (first < left.size()) {
    msghdr message{};
    message.msg_iov = left.data() + first;
    message.msg_iovlen = std::min(left.size() - first, kMaxPieces);
    ssize_t count = sendmsg(socket_, &message, MSG_NOSIGNAL);
    if (count < 0) {
      if (errno == EINTR) continue;
      if (!has_to_wait()) return failed("send");
      if (Result<void> ready = wait_for(POLLOUT); !ready) return ready;
      continue;
    }
    auto written = static_cast<size_t>(count);
    moved_bytes_ += written;
    while (first < left.size() && written >= left[first].iov_len) written -= left[first++].iov_len;
    if (first == left.size()) break;
    left[first].iov_base = static_cast<std::byte*>(left[first].iov_base) + written;
    left[first].iov_len -= written;
  }
  return {};
}

Result<void> StreamSocket::write_tls(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    size_t written = 0;
    ERR_clear_error();
    size_t step = std::min(bytes.size(), kTlsPieceBytes);
    int result = SSL_write_ex(session_.get(), bytes.data(), step, &written);
    if (result == 1) {
      moved_bytes_ += written;
      bytes = bytes.subspan(written);
    } else if (Result<void> ready = wait_for_tls(result, "TLS write"); !ready) {
      return ready;
    }
  }
  return {};
}

Result<size_t> StreamSocket::read_tls(std::span<std::byte> bytes) {
  while (true) {
    size_t count = 0;
    ERR_clear_error();
    int result = SSL_read_ex(session_.get(), bytes.data(), bytes.size(), &count);
    if (result == 1) {
      moved_bytes_ += count;
      return count;
    }
    if (Result<void> ready = wait_for_tls(result, "TLS read"); !ready) return ready.error();
  }
}

Result<size_t> StreamSocket::read(std::span<std::byte> first, std::span<std::byte> second) {
  if (session_) return read_tls(first.empty() ? second : first);
  while (true) {
    iovec pieces[2] = {{first.data(), first.size()}, {second.data(), second.size()}};
    ssize_t count = readv(socket_, pieces, 2);
    if (count > 0) {
      moved_bytes_ += static_cast<size_t>(count);
      return static_cast<size_t>(count);
    }
    if (count == 0) return Error{ErrorCode::kUnavailable, "the server has closed the connection"};
    if (errno == EINTR) continue;
    if (!has_to_wait()) return failed("read");
    if (Result<void> ready = wait_for(POLLIN); !ready) return ready.error();
  }
}

bool StreamSocket::is_quiet() const {
  pollfd wanted{socket_, POLLIN, 0};
  return poll(&wanted, 1, 0) == 0;
}

void StreamSocket::shut_down() {
  shutdown(socket_, SHUT_RDWR);
}

}  // namespace droidspeak
