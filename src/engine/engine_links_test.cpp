// Links that become slow, stop, break or lie in the middle of a load, through the whole engine: the
// answer is the one that full prefill gives, and what has arrived whole is used.
#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_wait.h"
#include "engine/remote_engine_fixture.h"
#include "redis/faulty_link.h"
#include "store/gated_file_system.h"
#include "store/map_server.h"

namespace droidspeak {
namespace {

using Fault = FaultyLink::Fault;

constexpr int32_t kBlocks = 15;
constexpr uint64_t kBlockBytes = uint64_t{64} << 10;  // of K/V, all layers

// A prompt that another engine has read, behind a link that fails after so much of it.
class BreakingLink : public testing::Test {
 protected:
  void SetUp() override {
    right_ = family_.reference_greedy("base", prompt_, 12);
    read_with_one_engine(family_, remote_engine(server_.servers()), prompt_);
    options_ = remote_engine(link_.servers());
    options_.fixed_costs->token_seconds = 2e-4;  // computing takes about a second
    options_.store.remote.connections = 1;       // blocks come one after the other
    options_.load_stall_ms = 3.6e6;              // a disk's, which links do not wait for
  }

  Outcome ask(Engine& engine) {
    return generate(engine, {.model = "base", .prompt = prompt_, .max_tokens = 12});
  }

  // A new engine, whose link goes on at 2000 bytes a second once it has carried `blocks`.
  std::unique_ptr<Engine> engine_on_slowing_link(uint64_t blocks) {
    auto engine = std::make_unique<Engine>(family_.ops(), family_.file(), options_);
    wait_for_link(*engine);
    link_.set_slow_rate(2000);
    link_.fail_after(blocks * kBlockBytes, Fault::kSlow);
    return engine;
  }

  void expect_right_after_failure(const Outcome& outcome) const {
    EXPECT_EQ(outcome.tokens, right_);
    EXPECT_TRUE(link_.has_failed());
  }

  SharedFamily family_;
  std::vector<int32_t> prompt_ = question(1, kBlocks* kBlockTokens, 10);
  std::vector<int32_t> right_;
  MapServer server_;
  FaultyLink link_{server_.servers().addresses.front().port};
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
  EXPECT_EQ(outcome.report.tier, "remote") << "though host memory has what arrived by now";
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
  EXPECT_TRUE(link_.has_failed());
  EXPECT_GE(outcome.report.reused_tokens, 8 * kBlockTokens) << outcome.report.fallback;
  EXPECT_LT(outcome.report.reused_tokens, kBlocks * kBlockTokens);
  EXPECT_EQ(outcome.tokens.size(), shared.size());
}

// A link that is slow from the beginning, so that a context comes a few blocks at a time, and an
// engine that keeps nothing in host memory: what is whole is on the device.
class WithoutHostMemory : public BreakingLink {
 protected:
  void SetUp() override {
    BreakingLink::SetUp();
    options_.store.host_bytes = 0;
    link_.set_slow_rate(1e6);
    link_.fail_after(0, Fault::kSlow);
  }

  // The link all but stops once it has carried so many blocks of the answer.
  Outcome ask_and_stop_after(Engine& engine, uint64_t blocks, GenerationRequest request) {
    const uint64_t until = link_.carried() + blocks * kBlockBytes;
    std::atomic<bool> is_done = false;
    std::thread watcher([&] {
      while (!is_done && link_.carried() < until)
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      link_.set_slow_rate(2000);
    });
    Outcome outcome = generate(engine, std::move(request));
    is_done = true;
    watcher.join();
    link_.set_slow_rate(1e6);
    return outcome;
  }
};

// On a machine with other work the link may stand still by itself: then it is tried again.
constexpr int kAttempts = 6;

// It takes more than the time that may be lost, and is worth it all the same.
TEST_F(WithoutHostMemory, ALongLoadIsNotGivenUp) {
  options_.fixed_costs->token_seconds = 1e-1;
  Outcome outcome;
  for (int i = 0; i < kAttempts && outcome.report.cached_tokens < kBlocks * kBlockTokens; ++i) {
    Engine engine(family_.ops(), family_.file(), options_);
    wait_for_link(engine);
    outcome = ask(engine);
    EXPECT_EQ(outcome.tokens, right_);
  }
  EXPECT_EQ(outcome.report.fallback, "");
  EXPECT_EQ(outcome.report.cached_tokens, kBlocks * kBlockTokens);
}

TEST_F(WithoutHostMemory, WhatHasArrivedIsUsed) {
  options_.fixed_costs->token_seconds = 1e-1;
  Outcome outcome;
  for (int i = 0; i < kAttempts && outcome.report.cached_tokens == 0; ++i) {
    Engine engine(family_.ops(), family_.file(), options_);
    wait_for_link(engine);
    outcome =
        ask_and_stop_after(engine, 10, {.model = "base", .prompt = prompt_, .max_tokens = 12});
    EXPECT_EQ(outcome.tokens, right_);
  }
  EXPECT_NE(outcome.report.fallback, "");
  EXPECT_GT(outcome.report.cached_tokens, 0) << outcome.report.fallback;
  EXPECT_LT(outcome.report.cached_tokens, kBlocks * kBlockTokens);
}

// Cut where the link broke: the same answer as if no more had been found.
TEST_F(WithoutHostMemory, WhatHasArrivedOfASendersCacheIsAllThatThereIs) {
  options_.fixed_costs->token_seconds = 1e-1;
  for (std::string plan : {"reuse", "0,2,3"}) {
    Outcome cut;
    for (int i = 0; i < kAttempts && cut.report.reused_tokens == 0; ++i) {
      Engine engine(family_.ops(), family_.file(), options_);
      wait_for_link(engine);
      cut = ask_and_stop_after(engine, 10, by_name("alpha", prompt_, plan));
    }
    ASSERT_GT(cut.report.reused_tokens, 0) << cut.report.fallback;
    ASSERT_LT(cut.report.reused_tokens, kBlocks * kBlockTokens);
    Engine engine(family_.ops(), family_.file(), tiny_options());
    std::vector<int32_t> head(prompt_.begin(), prompt_.begin() + cut.report.reused_tokens);
    head.push_back(1);
    generate(engine, {.model = "base", .prompt = head, .max_tokens = 1});
    Outcome whole = generate(engine, by_name("alpha", prompt_, plan));
    EXPECT_EQ(whole.report.reused_tokens, cut.report.reused_tokens);
    EXPECT_EQ(whole.tokens, cut.tokens) << plan;
  }
}

// Half of each context on a disk, and all of it behind a link.
class DiskAndLink : public testing::Test {
 protected:
  void SetUp() override {
    EngineOptions disk = tiny_options();
    disk.store.disk_folder = folder_.path() / "cache";
    for (uint64_t number : {1, 2}) {
      read_with_one_engine(family_, remote_engine(server_.servers()), prompt(number));
      Engine engine(family_.ops(), family_.file(), disk);
      std::vector<int32_t> half = prompt(number);
      half.resize(8 * kBlockTokens + 1);
      generate(engine, {.model = "base", .prompt = half, .max_tokens = 1});
    }
    options_ = remote_engine(server_.servers());
    options_.store.disk_folder = disk.store.disk_folder;
    options_.store.file_system = &files_;
    options_.store.host_bytes = 0;
    options_.load_stall_ms = 300;
  }

  static std::vector<int32_t> prompt(uint64_t number) {
    return random_prompt(static_cast<uint32_t>(number), kBlocks * kBlockTokens + 10);
  }

  Outcome ask(Engine& engine, uint64_t number) {
    return generate(engine, {.model = "base", .prompt = prompt(number), .max_tokens = 12});
  }

  SharedFamily family_;
  TemporaryFolder folder_;
  GatedFileSystem files_;
  MapServer server_;
  EngineOptions options_;
};

TEST_F(DiskAndLink, TheOneThatHasStalledRests) {
  // Before the disk stalls: it rests for a moment only.
  const std::vector<int32_t> first = family_.reference_greedy("base", prompt(1), 12);
  const std::vector<int32_t> second = family_.reference_greedy("base", prompt(2), 12);
  Engine engine(family_.ops(), family_.file(), options_);
  wait_for_link(engine);
  files_.close_gate_after(0);
  EXPECT_EQ(ask(engine, 1).tokens, first);
  Outcome next = ask(engine, 2);
  EXPECT_EQ(next.tokens, second);
  EXPECT_EQ(next.report.cached_tokens, kBlocks * kBlockTokens) << "all of it is behind the link";
  EngineMetrics metrics = engine.metrics();
  EXPECT_EQ(metrics.fallbacks["load_stalled"], 1u);
  EXPECT_EQ(metrics.fallbacks["remote_avoided"], 0u) << "it did what it was asked";
  EXPECT_EQ(metrics.fallbacks["disk_avoided"], 1u) << "although it is not the slowest";
  files_.open_gate();
}

TEST_F(BreakingLink, AStalledResetOrLyingLinkCostsTimeOnly) {
  for (Fault fault : {Fault::kStalled, Fault::kReset, Fault::kFlipped}) {
    Engine engine(family_.ops(), family_.file(), options_);
    wait_for_link(engine);
    link_.fail_after(3 * kBlockBytes + 1000, fault);
    Outcome outcome = ask(engine);
    EXPECT_EQ(outcome.tokens, right_) << static_cast<int>(fault);
    EXPECT_TRUE(link_.has_failed());
    // The engine may have given it up before the connection does.
    wait_until(
        [&] {
          TierReport remote = engine.metrics().store.of(Tier::kRemote);
          return remote.misses + remote.damaged > 0;
        },
        "the failure is counted");
    link_.heal();
    wait_for_link(engine);
    EXPECT_EQ(ask(engine).tokens, right_) << "nothing is stuck";
  }
}

TEST(FullQueue, RefusesBeforeAnybodyIsAsked) {
  SKIP_WITHOUT_REDIS();
  SharedFamily family;
  RedisProcess server;
  EngineOptions options = remote_engine(server.servers());
  options.max_queue = 0;
  Engine engine(family.ops(), family.file(), options);
  wait_for_link(engine);
  const GenerationRequest request{.model = "base", .prompt = question(1, 256, 10), .max_tokens = 1};
  auto refused = engine.submit(request);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  server.command({"CONFIG", "RESETSTAT"});
  EXPECT_FALSE(engine.submit(request));
  std::string calls = server.command({"INFO", "commandstats"}).text;
  EXPECT_EQ(calls.find("cmdstat_exists"), std::string::npos) << calls;
}

}  // namespace
}  // namespace droidspeak
