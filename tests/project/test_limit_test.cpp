// tests/support/test_limit.cpp, which every test binary has.
#include <csignal>

#include <gtest/gtest.h>
#include <unistd.h>

namespace droidspeak {
namespace {

TEST(TestLimitDeathTest, NamesTheTestThatHangs) {
  EXPECT_EXIT(raise(SIGALRM), testing::KilledBySignal(SIGABRT),
              "TestLimitDeathTest.NamesTheTestThatHangs hangs");
}

TEST(TestLimit, IsSetInEveryTest) {
  unsigned left = alarm(0);
  alarm(left);
  EXPECT_GT(left, 0u);
}

}  // namespace
}  // namespace droidspeak
