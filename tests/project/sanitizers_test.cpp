// What a sanitizer build must end on. Compiled in such builds only.
#include <cstdlib>
#include <limits>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/check.h"

namespace droidspeak {
namespace {

bool has_sanitizer(std::string_view name) {
  return std::string_view(DROIDSPEAK_SANITIZE).find(name) != std::string_view::npos;
}

void overflow() {
  volatile int value = std::numeric_limits<int>::max();
  value = value + 1;
}

void read_past_the_end() {
  const auto values = std::make_unique<int[]>(4);
  volatile size_t past_the_end = 4;
  volatile int value = values.get()[past_the_end];
  static_cast<void>(value);
}

void race() {
  int shared = 0;
  std::thread other([&] { *static_cast<volatile int*>(&shared) = 1; });
  *static_cast<volatile int*>(&shared) = 2;
  other.join();
  std::exit(0);
}

class SanitizersDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(SanitizersDeathTest, EndTheProcess) {
  ASSERT_TRUE(has_sanitizer("undefined") || has_sanitizer("thread")) << DROIDSPEAK_SANITIZE;
  if (has_sanitizer("undefined")) {
    EXPECT_DEATH(overflow(), "signed integer overflow");
  }
  if (has_sanitizer("address")) {
    EXPECT_DEATH(read_past_the_end(), "heap-buffer-overflow");
  }
  if (has_sanitizer("thread")) {
    EXPECT_EXIT(race(), testing::ExitedWithCode(66), "data race");
  }
}

TEST_F(SanitizersDeathTest, DebugChecksEndTheProcess) {
  debug_check(true, "fine");
  EXPECT_DEATH(debug_check(false, "a broken rule"), "a broken rule");
}

TEST_F(SanitizersDeathTest, StandardLibraryChecksEndTheProcess) {
  const std::vector<int> values(1);
  volatile size_t past_the_end = 1;
  EXPECT_DEATH(static_cast<void>(values[past_the_end]), "Assertion|overflow");
}

}  // namespace
}  // namespace droidspeak
