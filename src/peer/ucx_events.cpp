#include "peer/ucx_events.h"

#include <cstdint>
#include <utility>

#include <dlfcn.h>
#include <sys/epoll.h>

namespace {

thread_local bool is_one_at_a_time = false;
thread_local bool has_left_out = false;

}  // namespace

extern "C" int epoll_wait(int epoll, epoll_event* events, int max_events, int timeout) {
  const int count = epoll_pwait(epoll, events, max_events, timeout, nullptr);
  if (!is_one_at_a_time) return count;
  constexpr uint32_t kBoth = EPOLLIN | EPOLLOUT;
  for (int i = 0; i < count; ++i) {
    const uint32_t known = events[i].events;
    if ((known & kBoth) != kBoth) continue;
    events[i].events = known & ~uint32_t{EPOLLOUT};
    has_left_out = true;
  }
  return count;
}

namespace droidspeak {

bool ucx_asks_us_for_events() {
  return dlsym(RTLD_DEFAULT, "epoll_wait") == reinterpret_cast<void*>(&epoll_wait);
}

OneThingAtATime::OneThingAtATime() {
  is_one_at_a_time = true;
  has_left_out = false;
}

OneThingAtATime::~OneThingAtATime() {
  is_one_at_a_time = false;
}

bool OneThingAtATime::take_left_out() {
  return std::exchange(has_left_out, false);
}

bool go_on_one_at_a_time(const std::function<bool()>& step, int max_steps) {
  bool happened = false;
  OneThingAtATime events;
  for (int i = 0; i < max_steps; ++i) {
    const bool did_something = step();
    if (!events.take_left_out() && !did_something) break;
    happened = true;
  }
  return happened;
}

}  // namespace droidspeak
