// UCX 1.13 to 1.16 takes a connection's news from epoll_wait() and calls first what reads from it,
// then what writes to it. Where a connection that was closed with something unsent comes to its
// end, reading frees it, and writing goes where freed memory says: the process ends, when a client
// goes in the middle of a reply. So UCX is told of one thing at a time: this module has an
// epoll_wait() of its own, which comes before the C library's in a program that exports it.
#pragma once

#include <functional>

namespace droidspeak {

// False where UCX would call another epoll_wait(): the program was linked without exporting it.
bool ucx_asks_us_for_events();

// While it lives, this thread's epoll_wait() says of what can be read and written only the former.
// The latter is said when there is nothing to read: before, UCX would write to connections that
// were reset, and count that twice.
class OneThingAtATime {
 public:
  OneThingAtATime();
  ~OneThingAtATime();
  OneThingAtATime(const OneThingAtATime&) = delete;
  OneThingAtATime& operator=(const OneThingAtATime&) = delete;

  // Whether something was left out since the last call, so that UCX must be asked to go on even
  // where it did nothing.
  bool take_left_out();
};

// Takes steps, one thing at a time, for as long as they do something or something was left out; so
// many at most. `step`: whether it did something. False when nothing happened.
bool go_on_one_at_a_time(const std::function<bool()>& step, int max_steps);

}  // namespace droidspeak
