// Links that become slow, stop, break or lie in the middle of a load, through the whole engine: the
// answer is the one that full prefill gives, and what has arrived whole is used.
#include <gtest/gtest.h>

#include "engine/remote_engine_fixture.h"
#include "redis/faulty_link.h"

namespace droidspeak {
namespace {

using Fault = FaultyLink::Fault;

constexpr int32_t kBlocks = 15;
constexpr uint64_t kBlockBytes = uint64_t{64} << 10;  // of K/V, all layers

// A prompt that another engine has read, behind a link that fails after so much of it.
class BreakingLink : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_REDIS();
    server_ = std::make_unique<RedisProcess>();
    link_ = std::make_unique<FaultyLink>(server_->port());
    right_ = family_.reference_greedy("base", prompt_, 12);
    read_with_one_engine(family_, remote_engine(server_->servers()), prompt_);
    options_ = remote_engine(link_->servers());
    options_.fixed_costs->token_seconds = 2e-4;  // computing takes about a second
    options_.store.remote.connections = 1;       // blocks come one after the other
  }

  Outcome ask(Engine& engine) {
    return generate(engine, {.model = "base", .prompt = prompt_, .max_tokens = 12});
  }

  // A new engine, whose link goes on at 2000 bytes a second once it has carried `blocks`.
  std::unique_ptr<Engine> engine_on_slowing_link(uint64_t blocks) {
    auto engine = std::make_unique<Engine>(family_.ops(), family_.file(), options_);
    wait_for_link(*engine);
    link_->set_slow_rate(2000);
    link_->fail_after(blocks * kBlockBytes, Fault::kSlow);
    return engine;
  }

  void expect_right_after_failure(const Outcome& outcome) const {
    EXPECT_EQ(outcome.tokens, right_);
    EXPECT_TRUE(link_->has_failed());
  }

  SharedFamily family_;
  std::vector<int32_t> prompt_ = question(1, kBlocks* kBlockTokens, 10);
  std::vector<int32_t> right_;
  std::unique_ptr<RedisProcess> server_;
  std::unique_ptr<FaultyLink> link_;
  EngineOptions options_;
};

// At the rate that is left it would take minutes.
TEST_F(BreakingLink, ALoadOverALinkThatSlowsDownIsGivenUp) {
  auto engine = engine_on_slowing_link(2);
  Outcome outcome = ask(*engine);
  expect_right_after_failure(outcome);
  EXPECT_NE(outcome.report.fallback, "");
  EngineMetrics metrics = engine->metrics();
  EXPECT_EQ(metrics.fallbacks["load_stalled"] + metrics.fallbacks["load_failed"], 1u);
}

TEST_F(BreakingLink, WhatHasArrivedIsUsed) {
  auto engine = engine_on_slowing_link(12);
  Outcome outcome = ask(*engine);
  expect_right_after_failure(outcome);
  EXPECT_GE(outcome.report.cached_tokens, 8 * kBlockTokens) << outcome.report.fallback;
  EXPECT_LT(outcome.report.cached_tokens, kBlocks * kBlockTokens);
}

TEST_F(BreakingLink, OfASendersCacheToo) {
  std::vector<int32_t> shared;
  {
    Engine engine(family_.ops(), family_.file(), options_);
    wait_for_link(engine);
    shared = generate(engine, by_name("alpha", prompt_, "reuse")).tokens;
  }
  auto engine = engine_on_slowing_link(12);
  Outcome outcome = generate(*engine, by_name("alpha", prompt_, "reuse"));
  EXPECT_TRUE(link_->has_failed());
  EXPECT_GE(outcome.report.reused_tokens, 8 * kBlockTokens) << outcome.report.fallback;
  EXPECT_LT(outcome.report.reused_tokens, kBlocks * kBlockTokens);
  EXPECT_EQ(outcome.tokens.size(), shared.size());
}

TEST_F(BreakingLink, AStalledResetOrLyingLinkCostsTimeOnly) {
  for (Fault fault : {Fault::kStalled, Fault::kReset, Fault::kFlipped}) {
    Engine engine(family_.ops(), family_.file(), options_);
    wait_for_link(engine);
    link_->fail_after(3 * kBlockBytes + 1000, fault);
    Outcome outcome = ask(engine);
    EXPECT_EQ(outcome.tokens, right_) << static_cast<int>(fault);
    EXPECT_TRUE(link_->has_failed());
    TierReport remote = engine.metrics().store.of(Tier::kRemote);
    EXPECT_GT(remote.misses + remote.damaged, 0u) << static_cast<int>(fault);
    link_->heal();
    wait_for_link(engine);
    EXPECT_EQ(ask(engine).tokens, right_) << "nothing is stuck";
  }
}

TEST_F(BreakingLink, AFullQueueRefusesBeforeAnybodyIsAsked) {
  options_.max_queue = 0;
  Engine engine(family_.ops(), family_.file(), options_);
  wait_for_link(engine);
  auto refused = engine.submit({.model = "base", .prompt = prompt_, .max_tokens = 1});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  server_->command({"CONFIG", "RESETSTAT"});
  EXPECT_FALSE(engine.submit({.model = "base", .prompt = prompt_, .max_tokens = 1}));
  std::string calls = server_->command({"INFO", "commandstats"}).text;
  EXPECT_EQ(calls.find("cmdstat_exists"), std::string::npos) << calls;
}

}  // namespace
}  // namespace droidspeak
