#include "model/supported_models.h"

#include <gtest/gtest.h>

#include "base/file.h"

namespace droidspeak {
namespace {

TEST(SupportedModels, AreThoseOfThePage) {
  const std::string page =
      read_file(std::filesystem::path(DROIDSPEAK_SOURCE_DIR) / "docs/supported_models.md");
  EXPECT_EQ(page, supported_models_page())
      << "build/droidspeak supported > docs/supported_models.md";
}

}  // namespace
}  // namespace droidspeak
