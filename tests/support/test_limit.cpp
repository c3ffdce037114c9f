// In every test binary: a test that hangs is named and ends the process, long before ctest would
// end it without a name. DROIDSPEAK_TEST_SECONDS sets another limit, 0 none.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include <gtest/gtest.h>
#include <unistd.h>

namespace droidspeak {
namespace {

// Far more than any test takes, a minute with sanitizers, and more than `wait_until` waits.
constexpr unsigned kTestSeconds = 300;

constexpr std::string_view kHangs = " hangs: it has not ended in time\n";
char name_of_test[256] = "a test";

void write_error(std::string_view text) {
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

// Only what a signal's handler may call.
extern "C" void end_test_that_hangs(int /*signal*/) {
  write_error({name_of_test, strnlen(name_of_test, sizeof name_of_test)});
  write_error(kHangs);
  abort();
}

unsigned test_seconds() {
  const char* given = std::getenv("DROIDSPEAK_TEST_SECONDS");
  if (given == nullptr) return kTestSeconds;
  return static_cast<unsigned>(std::strtoul(given, nullptr, 10));
}

// Each event begins a new term, so that what is shared by a suite and what ends the program have
// theirs. An alarm needs no thread, and children do not inherit it.
class TestLimit final : public ::testing::EmptyTestEventListener {
 public:
  void OnTestSuiteStart(const ::testing::TestSuite& suite) override { begin(suite.name()); }

  void OnTestStart(const ::testing::TestInfo& test) override {
    begin(std::string(test.test_suite_name()) + "." + test.name());
  }

  void OnTestEnd(const ::testing::TestInfo& test) override {
    begin("what follows " + std::string(test.test_suite_name()) + "." + test.name());
  }

 private:
  void begin(std::string_view name) {
    alarm(0);  // nobody reads the name meanwhile
    size_t size = std::min(name.size(), sizeof name_of_test - 1);
    name.copy(name_of_test, size);
    name_of_test[size] = '\0';
    alarm(seconds_);
  }

  const unsigned seconds_ = test_seconds();
};

const bool is_installed = [] {
  std::signal(SIGALRM, end_test_that_hangs);
  ::testing::UnitTest::GetInstance()->listeners().Append(new TestLimit);  // which then owns it
  return true;
}();

}  // namespace
}  // namespace droidspeak
