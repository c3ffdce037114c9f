// Runs every file under cases/ against one server.
#include <algorithm>
#include <memory>

#include <gtest/gtest.h>

#include "e2e/case_file.h"
#include "e2e/tiny_server.h"

namespace droidspeak {

namespace {

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(DROIDSPEAK_SOURCE_DIR "/tests/e2e/cases")) {
    names.push_back(entry.path().stem());
  }
  std::ranges::sort(names);
  return names;
}

class HttpCase : public testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() { server_ = std::make_unique<TinyServer>(); }

  static void TearDownTestSuite() { server_.reset(); }

  static std::unique_ptr<TinyServer> server_;  // NOLINT: GoogleTest shares fixtures this way
};

std::unique_ptr<TinyServer> HttpCase::server_;  // NOLINT

TEST_P(HttpCase, IsAnsweredAsWritten) {
  std::filesystem::path path = DROIDSPEAK_SOURCE_DIR "/tests/e2e/cases/" + GetParam() + ".http";
  for (const CaseExchange& exchange : read_case_file(path)) {
    ClientResponse response = fetch(server_->port(), exchange.request);
    EXPECT_EQ(describe_difference(exchange, response), "") << path << ":" << exchange.line;
  }
}

INSTANTIATE_TEST_SUITE_P(Files, HttpCase, testing::ValuesIn(case_names()), [](const auto& test) {
  return test.param;
});

}  // namespace

}  // namespace droidspeak
