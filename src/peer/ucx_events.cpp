#include "peer/ucx_events.h"

#include <cstdint>
#include <utility>

#include <dlfcn.h>
#include <sys/epoll.h>

namespace {

thread_local bool is_writings_turn = false;
thread_local bool has_left_out = false;

}  // namespace

// Of a socket that can be read and written one or the other, in turns: what is left out is told the
// next time, as long as it is so.
extern "C" int epoll_wait(int epoll, epoll_event* events, int max_events, int timeout) {
  const int count = epoll_pwait(epoll, events, max_events, timeout, nullptr);
  constexpr uint32_t kBoth = EPOLLIN | EPOLLOUT;
  for (int i = 0; i < count; ++i) {
    const uint32_t known = events[i].events;
    if ((known & kBoth) != kBoth) continue;
    events[i].events = known & ~uint32_t{is_writings_turn ? EPOLLIN : EPOLLOUT};
    has_left_out = true;
  }
  is_writings_turn = !is_writings_turn;
  return count;
}

namespace droidspeak {

bool ucx_asks_us_for_events() {
  return dlsym(RTLD_DEFAULT, "epoll_wait") == reinterpret_cast<void*>(&epoll_wait);
}

bool take_left_out_events() {
  return std::exchange(has_left_out, false);
}

}  // namespace droidspeak
