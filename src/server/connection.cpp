#include "server/connection.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace droidspeak {

namespace {

// How soon a wait notices that the server stops.
constexpr std::chrono::milliseconds kStopInterval{100};
// How long a client then has to take the rest of an answer.
constexpr std::chrono::seconds kLastWords{2};

int poll_timeout(Connection::Clock::time_point deadline) {
  auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Connection::Clock::now());
  return static_cast<int>(std::clamp(left, std::chrono::milliseconds(0), kStopInterval).count());
}

}  // namespace

Connection::Connection(int socket,
                       const TlsContext* tls,
                       const std::atomic<bool>& is_stopping,
                       const Patience& patience)
    : socket_(socket),
      is_stopping_(is_stopping),
      patience_(patience),
      write_allowance_(patience.write) {
  int yes = 1;
  setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  if (tls != nullptr) {
    ssl_.reset(SSL_new(tls->get()));
    SSL_set_fd(ssl_.get(), socket_);
    SSL_set_accept_state(ssl_.get());
  }
}

Connection::~Connection() {
  ssl_.reset();
  ::close(socket_);
}

void Connection::FreeSsl::operator()(ssl_st* ssl) const {
  SSL_free(ssl);
}

bool Connection::wait(Direction direction, Clock::time_point deadline) const {
  short events = direction == Direction::kRead ? POLLIN : POLLOUT;
  auto patience = Clock::now() + (direction == Direction::kRead ? Clock::duration(0) : kLastWords);
  while (true) {
    pollfd entry{socket_, events, 0};
    int timeout = poll_timeout(deadline);
    int ready = ::poll(&entry, 1, timeout);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    auto now = Clock::now();
    if (now >= deadline || (is_stopping_ && now >= patience)) return false;
  }
}

bool Connection::shake_hands(Clock::time_point deadline) {
  if (!ssl_) return true;
  while (true) {
    ERR_clear_error();
    int status = SSL_do_handshake(ssl_.get());
    if (status == 1) return true;
    int error = SSL_get_error(ssl_.get(), status);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) return false;
    Direction direction = error == SSL_ERROR_WANT_READ ? Direction::kRead : Direction::kWrite;
    if (!wait(direction, deadline)) return false;
  }
}

ssize_t Connection::receive(char* target, size_t size) {
  if (!ssl_) {
    ssize_t count = ::recv(socket_, target, size, 0);
    if (count >= 0) return count;
    return errno == EAGAIN || errno == EINTR ? -1 : 0;
  }
  ERR_clear_error();
  int count = SSL_read(ssl_.get(), target, static_cast<int>(size));
  if (count > 0) return count;
  int error = SSL_get_error(ssl_.get(), count);
  wanted_ = error == SSL_ERROR_WANT_WRITE ? Direction::kWrite : Direction::kRead;
  return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? -1 : 0;
}

ssize_t Connection::send_some(std::string_view bytes) {
  if (!ssl_) {
    wanted_ = Direction::kWrite;
    ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count >= 0) return count;
    return errno == EAGAIN || errno == EINTR ? -1 : 0;
  }
  ERR_clear_error();
  int size = static_cast<int>(std::min<size_t>(bytes.size(), size_t{1} << 20));
  int count = SSL_write(ssl_.get(), bytes.data(), size);
  if (count > 0) return count;
  int error = SSL_get_error(ssl_.get(), count);
  wanted_ = error == SSL_ERROR_WANT_READ ? Direction::kRead : Direction::kWrite;
  return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? -1 : 0;
}

Connection::ReadStatus Connection::fill(Clock::time_point deadline) {
  while (begin_ == end_) {
    // A client that trickles is never out of bytes, so the clock counts even when some are there.
    if (Clock::now() >= deadline) return ReadStatus::kTimeout;
    wanted_ = Direction::kRead;
    ssize_t count = receive(buffer_.data(), buffer_.size());
    if (count == 0) return ReadStatus::kEnd;
    if (count > 0) {
      begin_ = 0;
      end_ = static_cast<size_t>(count);
    } else if (!wait(wanted_, deadline)) {
      return ReadStatus::kTimeout;
    }
  }
  return ReadStatus::kOk;
}

void Connection::begin_answer(std::string probe) {
  write_allowance_ = patience_.write;
  probe_ = std::move(probe);
}

bool Connection::write(std::string_view bytes) {
  write_allowance_ +=
      std::chrono::milliseconds(bytes.size() * 1000 / patience_.min_bytes_per_second);
  while (!bytes.empty() && !has_failed_) {
    ssize_t count = send_some(bytes);
    if (count > 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
      continue;
    }
    auto start = Clock::now();
    auto limit = std::min<Clock::duration>(patience_.write, write_allowance_);
    has_failed_ = count == 0 || !wait(wanted_, start + limit);
    write_allowance_ -= Clock::now() - start;
  }
  return !has_failed_;
}

bool Connection::is_open() {
  if (has_failed_ || is_stopping_) return false;
  pollfd entry{socket_, POLLRDHUP, 0};
  if (::poll(&entry, 1, 0) <= 0) return true;
  if ((entry.revents & (POLLHUP | POLLERR)) != 0 || ssl_) return false;
  probe_half_closed();
  return !has_failed_;
}

// A client that has closed both sides answers the probe with a reset, which the next look sees.
void Connection::probe_half_closed() {
  auto now = Clock::now();
  if (!half_closed_at_) half_closed_at_ = now;
  if (probe_.empty() || now - *half_closed_at_ < patience_.half_closed) return;
  write(std::exchange(probe_, {}));
}

void Connection::linger(Clock::time_point deadline) {
  if (has_failed_) return;
  if (ssl_) SSL_shutdown(ssl_.get());
  ::shutdown(socket_, SHUT_WR);
  pollfd entry{socket_, POLLIN, 0};
  while (Clock::now() < deadline && !is_stopping_) {
    int ready = ::poll(&entry, 1, poll_timeout(deadline));
    if (ready < 0 && errno != EINTR) return;
    if (ready > 0 && ::recv(socket_, buffer_.data(), buffer_.size(), 0) <= 0) return;
  }
}

std::string Connection::client_address() const {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getpeername(socket_, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "";
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_UNIX) return "unix";
  if (address.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address);
    inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
  } else if (address.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address);
    inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
  }
  return text;
}

}  // namespace droidspeak
