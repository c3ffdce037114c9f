#include "peer/ucx_events.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/file_descriptor.h"

namespace droidspeak {
namespace {

TEST(UcxEvents, AreAskedOfUs) {
  EXPECT_TRUE(ucx_asks_us_for_events());
}

// A socket that can be read and written: closing its end before would free it on reading.
TEST(UcxEvents, TellOneThingAtATime) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  const FileDescriptor ours(pair[0]);
  FileDescriptor theirs(pair[1]);
  const FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  epoll_event wanted{};
  wanted.events = EPOLLIN | EPOLLOUT;
  ASSERT_EQ(epoll_ctl(epoll.get(), EPOLL_CTL_ADD, ours.get(), &wanted), 0);
  take_left_out_events();
  auto told = [&] {
    epoll_event event{};
    EXPECT_EQ(epoll_wait(epoll.get(), &event, 1, 0), 1);
    return event.events & (EPOLLIN | EPOLLOUT);
  };
  EXPECT_EQ(told(), uint32_t{EPOLLOUT});
  EXPECT_FALSE(take_left_out_events()) << "there is nothing to read";
  ASSERT_EQ(write(theirs.get(), "x", 1), 1);
  const uint32_t first = told();
  EXPECT_TRUE(take_left_out_events());
  EXPECT_FALSE(take_left_out_events());
  const uint32_t second = told();
  EXPECT_EQ(first | second, uint32_t{EPOLLIN | EPOLLOUT}) << "in turns";
  EXPECT_NE(first, second);
  theirs = FileDescriptor(-1);
  const uint32_t third = told();
  EXPECT_TRUE(third == uint32_t{EPOLLIN} || third == uint32_t{EPOLLOUT}) << "at its end, too";
}

}  // namespace
}  // namespace droidspeak
