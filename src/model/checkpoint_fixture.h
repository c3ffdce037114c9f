// For tests of what the loaders refuse, and how they say it.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "model/weights.h"

namespace droidspeak {

class Checkpoints : public testing::Test {
 protected:
  // Empty: it loads.
  std::string refusal() {
    try {
      load_weights(*ops_, path_, Precision::kExact);
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "";
  }

  TemporaryFolder folder_;
  std::filesystem::path path_;
  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Ops> ops_ = make_cpu_ops(*device_, 1);
};

}  // namespace droidspeak
