// The engine on a device that is lost for good: everybody is told, nothing hangs.
#include <thread>

#include <gtest/gtest.h>

#include "device/losable_device.h"
#include "engine/engine.h"
#include "engine/engine_fixture.h"

namespace droidspeak {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// On devices that copy at once and on those that copy beside compute.
class LostDevice : public testing::TestWithParam<DeviceKind> {
 protected:
  LostDevice() : ops_(make_cpu_ops(device_, 1)) {
    if (GetParam() == DeviceKind::kCuda) device_.become_asynchronous();
    EngineOptions options = tiny_options();
    options.checks = EngineOptions::Checks::kNone;
    options.max_batch_sequences = 2;
    engine_ = std::make_unique<Engine>(*ops_, family_.file(), options);
  }

  Outcome run(const std::vector<int32_t>& prompt) {
    return generate(*engine_, {.model = "base", .prompt = prompt, .max_tokens = 4});
  }

  void expect_broken() {
    for (int i = 0; i < 2000 && engine_->is_healthy(); ++i)
      std::this_thread::sleep_for(milliseconds(5));
    EXPECT_FALSE(engine_->is_healthy());
    EXPECT_FALSE(engine_->state().is_healthy);
    EXPECT_EQ(engine_->submit({.model = "base", .prompt = {1}}).error().code,
              ErrorCode::kUnavailable);
    EXPECT_EQ(engine_->unload_adapter("alpha").error().code, ErrorCode::kUnavailable);
    engine_->drain(std::chrono::hours(10));  // everybody has ended, so it does not wait
    EXPECT_EQ(engine_->metrics().running, 0);
    EXPECT_EQ(engine_->metrics().waiting, 0);
  }

  TinyFamily family_;
  LosableDevice device_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Engine> engine_;
};

void expect_ended(const Outcome& outcome) {
  ASSERT_TRUE(outcome.error);
  // What ran may have been the cause; what waited can be tried elsewhere.
  EXPECT_TRUE(outcome.error->code == ErrorCode::kInternal ||
              outcome.error->code == ErrorCode::kUnavailable);
}

TEST_P(LostDevice, EndsWhatRunsAndWhatWaits) {
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (uint32_t seed = 0; seed < 5; ++seed) {
    auto stream =
        engine_->submit({.model = "base", .prompt = random_prompt(seed, 100), .max_tokens = 3000});
    ASSERT_TRUE(stream);
    streams.push_back(*stream);
  }
  ASSERT_TRUE(streams.front()->next(seconds(60)));
  device_.lose();
  for (const auto& stream : streams) expect_ended(collect(*stream));
  expect_broken();
}

// The copy lane of the load cannot be made, when the request is not among the running ones yet.
TEST_P(LostDevice, EndsARequestThatWouldLoadItsContext) {
  std::vector<int32_t> prompt = random_prompt(3, 4 * kBlockTokens + 5);
  ASSERT_TRUE(run(prompt).finished);
  ASSERT_EQ(run(prompt).report.cached_tokens, 4 * kBlockTokens);
  device_.lose();
  expect_ended(run(prompt));
  expect_broken();
}

TEST_P(LostDevice, IsNoticedWhenAnAdapterIsLoaded) {
  device_.lose();
  // Small weights may find room in memory that is there already.
  Result<void> loaded = engine_->load_adapter("gamma", family_.folder() / "adapters/alpha");
  if (!loaded) {
    EXPECT_EQ(loaded.error().code, ErrorCode::kUnavailable);
  }
  expect_broken();
}

INSTANTIATE_TEST_SUITE_P(Devices,
                         LostDevice,
                         testing::Values(DeviceKind::kCpu, DeviceKind::kCuda),
                         [](const auto& kind) {
                           return kind.param == DeviceKind::kCpu ? "Immediate" : "Asynchronous";
                         });

}  // namespace
}  // namespace droidspeak
