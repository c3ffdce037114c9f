// The engine on a device whose copies into the store are late.
#include <future>

#include <gtest/gtest.h>

#include "device/late_device.h"
#include "engine/engine.h"
#include "engine/engine_fixture.h"

namespace droidspeak {
namespace {

class LateCopies : public testing::Test {
 protected:
  LateCopies() : ops_(make_cpu_ops(device_, 1)) {
    family_.add_book("base", "alpha", {{{0, 0, 0}, 0.99}});
    device_.become_late();
    EngineOptions options = tiny_options();
    options.checks = EngineOptions::Checks::kNone;
    engine_ = std::make_unique<Engine>(*ops_, family_.file(), options);
  }

  ~LateCopies() override { device_.open(); }

  Outcome run(const std::vector<int32_t>& prompt, int32_t max_tokens) {
    return generate(*engine_, {.model = "base", .prompt = prompt, .max_tokens = max_tokens});
  }

  TinyFamily family_;
  LateDevice device_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(LateCopies, DoNotDelayAnswersAndAreThereForTheNextRequest) {
  std::vector<int32_t> prompt = random_prompt(3, 4 * kBlockTokens + 5);
  device_.close();
  Outcome first = run(prompt, 4);
  EXPECT_EQ(first.tokens, family_.reference_greedy("base", prompt, 4));
  EXPECT_EQ(first.report.cached_tokens, 0);
  auto second = std::async(std::launch::async, [&] { return run(prompt, 4); });
  EXPECT_EQ(second.wait_for(std::chrono::milliseconds(30)), std::future_status::timeout);
  device_.open();
  Outcome outcome = second.get();
  EXPECT_EQ(outcome.tokens, first.tokens);
  EXPECT_EQ(outcome.report.cached_tokens, 4 * kBlockTokens);
}

TEST_F(LateCopies, OfASenderAreWaitedForWhileOthersRun) {
  std::vector<int32_t> prompt = random_prompt(5, 4 * kBlockTokens + 5);
  auto other = engine_->submit({.model = "base", .prompt = {1, 2, 3}, .max_tokens = 3000});
  ASSERT_TRUE(other);
  ASSERT_TRUE((*other)->next(std::chrono::seconds(60)));
  device_.close();
  ASSERT_TRUE(run(prompt, 4).finished);
  auto receiver = std::async(std::launch::async, [&] {
    return generate(*engine_, {.model = "alpha",
                               .prompt = prompt,
                               .max_tokens = 4,
                               .sharing = {SharingRequest::Mode::kExplicit, "base", "reuse"}});
  });
  EXPECT_EQ(receiver.wait_for(std::chrono::milliseconds(30)), std::future_status::timeout);
  device_.open();
  Outcome outcome = receiver.get();
  EXPECT_EQ(outcome.report.sender, "base");
  EXPECT_EQ(outcome.report.plan, "reuse");
  EXPECT_EQ(outcome.report.reused_tokens, 4 * kBlockTokens);
  (*other)->cancel();
}

TEST_F(LateCopies, HoldTheirBlocksWhenARequestIsCancelled) {
  std::vector<int32_t> prompt = random_prompt(4, 2 * kBlockTokens + 1);
  device_.close();
  auto stream = engine_->submit({.model = "base", .prompt = prompt, .max_tokens = 100});
  ASSERT_TRUE(stream);
  while (engine_->metrics().generation_tokens == 0) std::this_thread::yield();
  (*stream)->cancel();
  device_.open();
  collect(**stream);
  for (uint32_t seed = 10; seed < 20; ++seed) {
    std::vector<int32_t> other = random_prompt(seed, 3 * kBlockTokens);
    EXPECT_EQ(run(other, 3).tokens, family_.reference_greedy("base", other, 3));
  }
  EXPECT_EQ(run(prompt, 3).tokens, family_.reference_greedy("base", prompt, 3));
}

}  // namespace
}  // namespace droidspeak
