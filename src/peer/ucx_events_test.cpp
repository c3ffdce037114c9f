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
  auto told = [&] {
    epoll_event event{};
    EXPECT_EQ(epoll_wait(epoll.get(), &event, 1, 0), 1);
    return event.events & (EPOLLIN | EPOLLOUT);
  };
  ASSERT_EQ(write(theirs.get(), "x", 1), 1);
  EXPECT_EQ(told(), uint32_t{EPOLLIN | EPOLLOUT}) << "others than UCX are told of all";
  OneThingAtATime events;
  EXPECT_EQ(told(), uint32_t{EPOLLIN});
  EXPECT_TRUE(events.take_left_out());
  EXPECT_FALSE(events.take_left_out());
  char letter = 0;
  ASSERT_EQ(read(ours.get(), &letter, 1), 1);
  EXPECT_EQ(told(), uint32_t{EPOLLOUT}) << "as soon as there is nothing to read";
  EXPECT_FALSE(events.take_left_out());
  theirs = FileDescriptor(-1);
  EXPECT_EQ(told(), uint32_t{EPOLLIN}) << "at its end, too";
}

}  // namespace
}  // namespace droidspeak
