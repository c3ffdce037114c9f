// The engine on a device whose copies into the store are late.
#include <future>

#include <gtest/gtest.h>

#include "base/test_wait.h"
#include "device/late_device.h"
#include "engine/engine.h"
#include "engine/engine_fixture.h"
#include "engine/slow_ops.h"

namespace droidspeak {
namespace {

class LateCopies : public testing::Test {
 protected:
  LateCopies() : ops_(make_cpu_ops(device_, 1)) {
    family_.add_book("base", "alpha", {{{0, 0, 0}, 0.99}});
    device_.become_late();
    EngineOptions options = tiny_options();
    options.checks = EngineOptions::Checks::kNone;
    engine_ = std::make_unique<Engine>(slow_, family_.file(), options);
  }

  ~LateCopies() override { device_.open(); }

  // Runs while the test lasts.
  std::shared_ptr<TokenStream> start_another() {
    slow_.pause = std::chrono::milliseconds(20);
    auto stream = engine_->submit({.model = "base", .prompt = {1, 2, 3}, .max_tokens = 3000});
    EXPECT_TRUE((*stream)->next(std::chrono::seconds(60)));
    return *stream;
  }

  Outcome run(const std::vector<int32_t>& prompt, int32_t max_tokens) {
    return generate(*engine_, {.model = "base", .prompt = prompt, .max_tokens = max_tokens});
  }

  TinyFamily family_;
  LateDevice device_;
  std::unique_ptr<Ops> ops_;
  SlowOps slow_{*ops_};
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
  auto other = start_another();
  device_.close();
  ASSERT_TRUE(run(prompt, 4).finished);
  auto receiver = std::async(std::launch::async, [&] {
    return generate(*engine_, {.model = "alpha",
                               .prompt = prompt,
                               .max_tokens = 4,
                               .sharing = {SharingRequest::Mode::kExplicit, "base", "reuse"}});
  });
  EXPECT_EQ(receiver.wait_for(std::chrono::milliseconds(30)), std::future_status::timeout);
  EXPECT_TRUE(run({4, 5, 6}, 3).finished) << "the engine goes on meanwhile";
  EXPECT_EQ(receiver.wait_for(std::chrono::milliseconds(0)), std::future_status::timeout);
  device_.open();
  Outcome outcome = receiver.get();
  EXPECT_EQ(outcome.report.sender, "base");
  EXPECT_EQ(outcome.report.plan, "reuse");
  EXPECT_EQ(outcome.report.reused_tokens, 4 * kBlockTokens);
  other->cancel();
}

// Whoever takes nothing of what is being copied is answered at once.
TEST_F(LateCopies, OfASenderDelayNobodyElse) {
  std::vector<int32_t> prompt = random_prompt(5, 4 * kBlockTokens + 5);
  auto other = start_another();
  device_.close();
  ASSERT_TRUE(run(prompt, 4).finished);
  GenerationRequest salted{
      .model = "alpha", .prompt = prompt, .max_tokens = 1, .cache_salt = "another"};
  GenerationRequest alone{.model = "alpha",
                          .prompt = prompt,
                          .max_tokens = 1,
                          .sharing = {SharingRequest::Mode::kOff, "", ""}};
  GenerationRequest full = alone;
  full.sharing = {SharingRequest::Mode::kExplicit, "base", "full"};
  GenerationRequest without_book{.model = "beta", .prompt = prompt, .max_tokens = 1};
  GenerationRequest elsewhere{.model = "alpha", .prompt = random_prompt(6, 200), .max_tokens = 1};
  GenerationRequest own = elsewhere;
  own.prompt = random_prompt(7, 200);
  own.sharing = {SharingRequest::Mode::kExplicit, "alpha", "reuse"};
  for (const GenerationRequest& request : {salted, alone, full, without_book, elsewhere, own}) {
    Outcome outcome = generate(*engine_, request);
    EXPECT_TRUE(outcome.finished) << request.model << ' ' << request.sharing.plan;
    EXPECT_EQ(outcome.report.cached_tokens, 0) << request.model << ' ' << request.sharing.plan;
  }
  prompt = random_prompt(8, 4 * kBlockTokens + 5);
  ASSERT_TRUE(run(prompt, 4).finished);
  auto receiver = std::async(std::launch::async, [&] {
    return generate(*engine_, {.model = "alpha", .prompt = prompt, .max_tokens = 4});
  });
  EXPECT_EQ(receiver.wait_for(std::chrono::milliseconds(30)), std::future_status::timeout)
      << "this one takes some, although it names nobody";
  device_.open();
  EXPECT_EQ(receiver.get().report.sender, "base");
  other->cancel();
}

// Tokens that are looked at are read into the blocks that are being copied.
TEST_F(LateCopies, AreOfWhatTheScoutLeft) {
  std::vector<int32_t> context = random_prompt(6, 4 * kBlockTokens);
  std::vector<int32_t> prompt = context;
  std::vector<int32_t> rest = random_prompt(7, 3 * kBlockTokens + 5);
  prompt.insert(prompt.end(), rest.begin(), rest.end());
  auto ask = [&](Engine& engine, const std::string& plan) {
    return generate(engine, {.model = "alpha",
                             .prompt = prompt,
                             .max_tokens = 4,
                             .sharing = {SharingRequest::Mode::kExplicit, "base", plan}});
  };
  EngineOptions options = tiny_options();
  options.checks = EngineOptions::Checks::kNone;
  Engine prompt_engine(family_.ops(), family_.file(), options);  // its copies are immediate
  generate(prompt_engine, {.model = "base", .prompt = context, .max_tokens = 1});
  run(context, 1);
  device_.close();
  auto late = std::async(std::launch::async, [&] { return ask(*engine_, "reuse+50%"); });
  EXPECT_EQ(late.wait_for(std::chrono::milliseconds(30)), std::future_status::timeout);
  device_.open();
  Outcome looked = late.get();
  EXPECT_EQ(looked.report.looked_at_tokens, 2 * kBlockTokens);
  EXPECT_EQ(looked.tokens, ask(prompt_engine, "reuse+50%").tokens);
  Outcome plain = ask(*engine_, "reuse");
  EXPECT_GT(plain.report.cached_tokens, 4 * kBlockTokens) << "what the scout left is stored";
  Engine fresh(family_.ops(), family_.file(), options);
  generate(fresh, {.model = "base", .prompt = context, .max_tokens = 1});
  EXPECT_EQ(plain.tokens, ask(fresh, "reuse").tokens);
}

TEST_F(LateCopies, HoldTheirBlocksWhenARequestIsCancelled) {
  std::vector<int32_t> prompt = random_prompt(4, 2 * kBlockTokens + 1);
  device_.close();
  auto stream = engine_->submit({.model = "base", .prompt = prompt, .max_tokens = 100});
  ASSERT_TRUE(stream);
  spin_until([&] { return engine_->metrics().generation_tokens > 0; });
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
