#include "peer/socket_watch.h"

#include <array>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <sys/epoll.h>

#include "base/check.h"
#include "base/error.h"

namespace droidspeak {

SocketWatch::SocketWatch() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (epoll_.get() < 0)
    throw Failure(ErrorCode::kUnavailable,
                  fmt::format("cannot watch sockets: {}", std::strerror(errno)));
}

bool SocketWatch::control(int operation, int socket, uint64_t name, For what) {
  epoll_event event{};
  event.events = EPOLLIN;
  if (what == For::kReadingAndWriting) event.events |= EPOLLOUT;
  event.data.u64 = name;
  return epoll_ctl(epoll_.get(), operation, socket, &event) == 0;
}

bool SocketWatch::add(int socket, uint64_t name, For what) {
  return control(EPOLL_CTL_ADD, socket, name, what);
}

void SocketWatch::change(int socket, uint64_t name, For what) {
  check(control(EPOLL_CTL_MOD, socket, name, what), "it is watched");
}

void SocketWatch::remove(int socket) {
  check(control(EPOLL_CTL_DEL, socket, 0, For::kReading), "it is watched");
}

std::vector<uint64_t> SocketWatch::ready() {
  std::array<epoll_event, 64> events;
  int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  std::vector<uint64_t> names;
  for (int i = 0; i < count; ++i) {
    uint64_t name = events[static_cast<size_t>(i)].data.u64;  // a copy: it is not aligned there
    names.push_back(name);
  }
  return names;
}

}  // namespace droidspeak
