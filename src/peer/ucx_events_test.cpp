#include "peer/ucx_events.h"

#include <vector>

#include <gmock/gmock.h>
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
class UcxEventsOfASocket : public testing::Test {
 protected:
  UcxEventsOfASocket() {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    ours_ = FileDescriptor(pair[0]);
    theirs_ = FileDescriptor(pair[1]);
    epoll_event wanted{};
    wanted.events = EPOLLIN | EPOLLOUT;
    EXPECT_EQ(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, ours_.get(), &wanted), 0);
    EXPECT_EQ(write(theirs_.get(), "x", 1), 1);
  }

  uint32_t told() const {
    epoll_event event{};
    EXPECT_EQ(epoll_wait(epoll_.get(), &event, 1, 0), 1);
    return event.events & (EPOLLIN | EPOLLOUT);
  }

  void read_it() const {
    char letter = 0;
    ASSERT_EQ(read(ours_.get(), &letter, 1), 1);
  }

  FileDescriptor ours_{-1};
  FileDescriptor theirs_{-1};
  const FileDescriptor epoll_{epoll_create1(EPOLL_CLOEXEC)};
};

TEST_F(UcxEventsOfASocket, TellOneThingAtATime) {
  EXPECT_EQ(told(), uint32_t{EPOLLIN | EPOLLOUT}) << "others than UCX are told of all";
  OneThingAtATime events;
  EXPECT_EQ(told(), uint32_t{EPOLLIN});
  EXPECT_TRUE(events.take_left_out());
  EXPECT_FALSE(events.take_left_out());
  read_it();
  EXPECT_EQ(told(), uint32_t{EPOLLOUT}) << "as soon as there is nothing to read";
  EXPECT_FALSE(events.take_left_out());
  theirs_ = FileDescriptor(-1);
  EXPECT_EQ(told(), uint32_t{EPOLLIN}) << "at its end, too";
}

// What can be written would wait for the next news, which may not come.
TEST_F(UcxEventsOfASocket, GoOnWhereOnlySomethingWasLeftOut) {
  std::vector<uint32_t> all_told;
  auto look = [&] {
    all_told.push_back(told());
    if (all_told.size() == 3) read_it();
    return false;
  };
  EXPECT_TRUE(go_on_one_at_a_time(look, 10));
  EXPECT_THAT(all_told, testing::ElementsAre(EPOLLIN, EPOLLIN, EPOLLIN, EPOLLOUT));
  EXPECT_FALSE(go_on_one_at_a_time(look, 10)) << "nothing was done, and nothing left out";
  EXPECT_EQ(all_told.size(), 5u);
  EXPECT_EQ(write(theirs_.get(), "x", 1), 1);
  EXPECT_TRUE(go_on_one_at_a_time(look, 10));
  EXPECT_EQ(all_told.size(), 15u) << "then others have their turn";
}

TEST_F(UcxEventsOfASocket, GoOnWhileSomethingIsDone) {
  int num_steps = 0;
  EXPECT_TRUE(go_on_one_at_a_time([&] { return ++num_steps < 4; }, 10));
  EXPECT_EQ(num_steps, 4);
  EXPECT_EQ(told(), uint32_t{EPOLLIN | EPOLLOUT}) << "others are told of all again";
}

}  // namespace
}  // namespace droidspeak
