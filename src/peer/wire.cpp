#include "peer/wire.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/error.h"

namespace droidspeak {
namespace {

constexpr int kBacklog = 128;
// A machine that is gone is noticed after half a minute where nothing is asked.
constexpr int kAliveSeconds = 10;
constexpr int kAliveProbes = 2;

bool would_wait() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

void set_option(int socket, int level, int name, int value) {
  setsockopt(socket, level, name, &value, sizeof value);
}

}  // namespace

Wire::Wire(FileDescriptor socket, SocketWatch& watch, uint64_t name)
    : socket_(std::move(socket)), watch_(&watch), name_(name) {
  set_option(socket_.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket_.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket_.get(), IPPROTO_TCP, TCP_KEEPIDLE, kAliveSeconds);
  set_option(socket_.get(), IPPROTO_TCP, TCP_KEEPINTVL, kAliveSeconds);
  set_option(socket_.get(), IPPROTO_TCP, TCP_KEEPCNT, kAliveProbes);
  watch_->add(socket_.get(), name_, SocketWatch::For::kReadingAndWriting);
}

Result<Wire> Wire::connect(const PeerAddress& address, SocketWatch& watch, uint64_t name) {
  FileDescriptor socket(
      ::socket(address.get()->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.get() < 0 ||
      (::connect(socket.get(), address.get(), address.length) != 0 && errno != EINPROGRESS)) {
    return Error{ErrorCode::kUnavailable, fmt::format("cannot connect: {}", std::strerror(errno))};
  }
  return Wire(std::move(socket), watch, name);
}

void Wire::send(std::span<const std::byte> bytes) {
  to_send_.insert(to_send_.end(), bytes.begin(), bytes.end());
}

bool Wire::send_some() {
  while (!to_send_.empty()) {
    ssize_t sent = ::send(socket_.get(), to_send_.data(), to_send_.size(), MSG_NOSIGNAL);
    if (sent < 0) return would_wait();
    to_send_.erase(to_send_.begin(), to_send_.begin() + sent);
  }
  return true;
}

// Where nothing is wanted it looks for one byte, to see the end and whoever speaks out of turn.
bool Wire::receive_some(size_t wanted) {
  while (true) {
    size_t before = received_.size();
    if (before > 0 && before >= wanted) return wanted > 0;
    received_.resize(std::max(wanted, size_t{1}));
    ssize_t got = ::recv(socket_.get(), received_.data() + before, received_.size() - before, 0);
    received_.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0) return would_wait();
    if (got == 0) return false;
  }
}

bool Wire::progress(size_t wanted) {
  if (!send_some() || !receive_some(wanted)) return false;
  if (is_watched_for_writing_ != !to_send_.empty()) {
    is_watched_for_writing_ = !is_watched_for_writing_;
    watch_->change(socket_.get(), name_,
                   is_watched_for_writing_ ? SocketWatch::For::kReadingAndWriting
                                           : SocketWatch::For::kReading);
  }
  return true;
}

FileDescriptor listen_on(const PeerAddress& address) {
  FileDescriptor socket(
      ::socket(address.get()->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  // A server that starts again may listen where connections of the last one are still known.
  if (socket.get() >= 0) set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (socket.get() < 0 || ::bind(socket.get(), address.get(), address.length) != 0 ||
      ::listen(socket.get(), kBacklog) != 0) {
    throw Failure(ErrorCode::kUnavailable, fmt::format("cannot listen for peers on {}: {}",
                                                       address.text(), std::strerror(errno)));
  }
  return socket;
}

PeerAddress address_of(const FileDescriptor& listener) {
  PeerAddress address;
  address.length = sizeof address.storage;
  getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length);
  return address;
}

}  // namespace droidspeak
