// What one engine has read, another takes from Redis, through the whole engine; and what happens
// when Redis does not play along.
#include <csignal>

#include <gtest/gtest.h>

#include "engine/remote_engine_fixture.h"
#include "store/map_server.h"

namespace droidspeak {
namespace {

TEST(RemoteSharing, OnesOwnCacheIsAskedForFirst) {
  SharedFamily family;
  MapServer server;
  EngineOptions options = remote_engine(server.servers());
  std::vector<int32_t> prompt = question(1, 256, 10);
  read_with_one_engine(family, options, prompt);
  Engine engine(family.ops(), family.file(), options);
  wait_for_link(engine);
  Outcome outcome = generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 12});
  EXPECT_EQ(outcome.report.cached_tokens, 256);
  EXPECT_EQ(outcome.report.tier, "remote");
  Engine alone(family.ops(), family.file(), tiny_options());
  EXPECT_EQ(outcome.tokens,
            generate(alone, {.model = "base", .prompt = prompt, .max_tokens = 12}).tokens);
}

TEST(RemoteSharing, ASecondEngineAnswersAsTheFirst) {
  SKIP_WITHOUT_REDIS();
  SharedFamily family;
  RedisProcess server;
  EngineOptions options = remote_engine(server.servers());
  std::vector<int32_t> prompt = question(1, 256, 10);
  std::vector<int32_t> shared;
  std::vector<int32_t> own;
  {
    Engine engine(family.ops(), family.file(), options);
    wait_for_link(engine);
    generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 1});
    Outcome outcome = generate(engine, by_name("alpha", prompt, "0,2,3"));
    EXPECT_EQ(outcome.report.tier, "host");
    shared = outcome.tokens;
    own = generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 12}).tokens;
  }
  Engine engine(family.ops(), family.file(), options);
  wait_for_link(engine);
  Outcome outcome = generate(engine, by_name("alpha", prompt, "0,2,3"));
  EXPECT_EQ(outcome.report.sender, "base");
  EXPECT_EQ(outcome.report.reused_tokens, 256);
  EXPECT_EQ(outcome.report.tier, "remote");
  EXPECT_EQ(outcome.tokens, shared);
  Outcome exact = generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 12});
  EXPECT_EQ(exact.report.cached_tokens, 256);
  EXPECT_EQ(exact.tokens, own);
  EXPECT_EQ(engine.metrics().hits_by_tier["remote"], 2u)
      << "layers that the plan recomputed were still there only";
}

// Whoever names nobody finds what others have read, from one block on.
TEST(RemoteSharing, ReceiversAskForWhatTheirSendersHave) {
  SharedFamily family;
  MapServer server;
  EngineOptions options = remote_engine(server.servers());
  options.store.remote.stall = std::chrono::seconds(20);  // whatever else runs here
  for (int32_t context : {4 * kBlockTokens, kBlockTokens}) {
    std::vector<int32_t> prompt = question(static_cast<uint32_t>(context), context, 10);
    if (context == kBlockTokens) prompt[0] = (prompt[0] + 1) % 256;  // another context
    read_with_one_engine(family, options, prompt);
    Engine engine(family.ops(), family.file(), options);
    wait_for_link(engine);
    Outcome shared = generate(engine, {.model = "alpha", .prompt = prompt, .max_tokens = 4});
    EXPECT_EQ(shared.report.sender, "base");
    EXPECT_EQ(shared.report.plan, "0,2,3");
    EXPECT_EQ(shared.report.reused_tokens, context);
    EXPECT_EQ(shared.report.tier, "remote");
    Outcome own = generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 4});
    EXPECT_EQ(own.report.cached_tokens, context);
  }
}

// What one engine has mixed with a plan saves another one following it, and reading what lies
// behind.
TEST(RemoteSharing, WhatAPlanHasMixedIsFoundByOthers) {
  SharedFamily family;
  MapServer server;
  EngineOptions options = remote_engine(server.servers());
  options.store.remote.stall = std::chrono::seconds(20);  // whatever else runs here
  auto expect_found = [&](const std::vector<int32_t>& prompt, int32_t context,
                          const std::string& plan, const std::vector<std::string>& asked) {
    std::vector<int32_t> head(prompt.begin(), prompt.begin() + context + 1);
    Outcome first;
    {
      Engine engine(family.ops(), family.file(), options);
      wait_for_link(engine);
      generate(engine, {.model = "base", .prompt = head, .max_tokens = 1});
      first = generate(engine, by_name("alpha", prompt, plan));
      EXPECT_EQ(first.report.recomputed_layers, plan == "reuse" ? 0 : 1);
    }
    for (const std::string& same : asked) {
      SCOPED_TRACE(same);
      Engine engine(family.ops(), family.file(), options);
      wait_for_link(engine);
      Outcome outcome = generate(engine, by_name("alpha", prompt, same));
      EXPECT_EQ(outcome.report.recomputed_layers, 0);
      EXPECT_EQ(outcome.report.reused_tokens, context);
      EXPECT_EQ(outcome.report.cached_tokens, context + 2 * kBlockTokens);
      EXPECT_EQ(outcome.report.tier, "remote");
      EXPECT_EQ(outcome.tokens, first.tokens);
    }
  };
  expect_found(question(1, 256, 150), 256, "0,2,3", {"0,2,3", "auto"});
  expect_found(question(2, 128, 150), 128, "reuse", {"reuse"});
  std::vector<int32_t> other = random_prompt(3, kBlockTokens + 150);
  expect_found(other, kBlockTokens, "0,2,3", {"0,2,3"});
}

// The plan that the family has for pairs without a book, and the engine's own.
TEST(RemoteSharing, MixedCachesOfOtherPlansAreFoundToo) {
  TinyFamily family;
  std::vector<int32_t> prompt = question(1, 256, 150);
  for (SharingMode mode : {SharingMode::kOn, SharingMode::kPlainReuse}) {
    MapServer server;
    EngineOptions options = remote_engine(server.servers());
    options.store.remote.stall = std::chrono::seconds(20);  // whatever else runs here
    options.sharing = mode;
    options.min_quality = 0;
    FamilyFile file = family.file();
    file.unprofiled = "reuse";
    GenerationRequest request{.model = "alpha", .prompt = prompt, .max_tokens = 4};
    {
      Engine engine(family.ops(), file, options);
      wait_for_link(engine);
      std::vector<int32_t> head(prompt.begin(), prompt.begin() + 257);
      generate(engine, {.model = "base", .prompt = head, .max_tokens = 1});
      EXPECT_EQ(generate(engine, request).report.plan, "reuse");
    }
    Engine engine(family.ops(), file, options);
    wait_for_link(engine);
    Outcome outcome = generate(engine, request);
    EXPECT_EQ(outcome.report.plan, "reuse");
    EXPECT_EQ(outcome.report.reused_tokens, 256);
    EXPECT_EQ(outcome.report.cached_tokens, 384) << "with what lies behind";
  }
}

TEST(RemoteSharing, TenantsAndAdaptersNeverMeet) {
  SharedFamily family;
  MapServer server;
  EngineOptions options = remote_engine(server.servers());
  std::vector<int32_t> prompt = question(1, 256, 10);
  read_with_one_engine(family, options, prompt);
  Engine engine(family.ops(), family.file(), options);
  wait_for_link(engine);
  GenerationRequest other{.model = "base", .prompt = prompt, .max_tokens = 4};
  other.cache_salt = "another tenant";
  EXPECT_EQ(generate(engine, other).report.cached_tokens, 0);
  GenerationRequest adapter{.model = "alpha", .prompt = prompt, .max_tokens = 4};
  adapter.sharing.mode = SharingRequest::Mode::kOff;
  EXPECT_EQ(generate(engine, adapter).report.cached_tokens, 0);
  EXPECT_EQ(
      generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 4}).report.cached_tokens,
      256);
}

TEST(RemoteSharing, FormatsNeverMeet) {
  SharedFamily family;
  MapServer server;
  std::vector<int32_t> prompt = question(1, 256, 10);
  read_with_one_engine(family, remote_engine(server.servers(), RemoteFormat::kInt8), prompt);
  Engine engine(family.ops(), family.file(), remote_engine(server.servers()));
  wait_for_link(engine);
  EXPECT_EQ(
      generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 4}).report.cached_tokens,
      0);
}

TEST(RemoteSharing, AServerThatIsStoppedKilledOrFlushedCostsTimeOnly) {
  SKIP_WITHOUT_REDIS();
  SharedFamily family;
  RedisProcess server;
  EngineOptions options = remote_engine(server.servers());
  std::vector<int32_t> prompt = question(1, 256, 10);
  std::vector<int32_t> right = family.reference_greedy("base", prompt, 12);
  GenerationRequest request{.model = "base", .prompt = prompt, .max_tokens = 12};
  read_with_one_engine(family, options, prompt);
  {
    Engine engine(family.ops(), family.file(), options);
    wait_for_link(engine);
    server.signal(SIGSTOP);
    EXPECT_EQ(generate(engine, request).tokens, right);
    server.signal(SIGCONT);
  }
  {
    Engine engine(family.ops(), family.file(), options);
    wait_for_link(engine);
    server.command({"FLUSHALL"});
    EXPECT_EQ(generate(engine, request).tokens, right);
  }
  Engine engine(family.ops(), family.file(), options);
  wait_for_link(engine);
  server.kill_now();
  EXPECT_EQ(generate(engine, request).tokens, right);
  server.start();
  wait_for_link(engine);
  EXPECT_EQ(generate(engine, request).tokens, right);
}

// The link says how long it takes: what would take longer than computing is not begun.
TEST(RemoteSharing, ALoadThatIsSlowerThanComputingIsNotBegun) {
  SharedFamily family;
  MapServer server;
  std::vector<int32_t> prompt = question(1, 256, 10);
  EngineOptions options = remote_engine(server.servers());
  read_with_one_engine(family, options, prompt);
  options.fixed_costs->token_seconds = 1e-15;
  options.fixed_costs->attention_seconds = 0;
  Engine engine(family.ops(), family.file(), options);
  wait_for_link(engine);
  Outcome outcome = generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 4});
  EXPECT_EQ(outcome.report.cached_tokens, 0);
  EXPECT_EQ(engine.metrics().store.of(Tier::kRemote).hits, 0u);
}

TEST(RemoteSharing, WhatIsHereIsUsedThoughTheRestWouldTakeLongerThanComputing) {
  SharedFamily family;
  MapServer server;
  std::vector<int32_t> prompt = question(1, 256, 10);
  EngineOptions options = remote_engine(server.servers());
  read_with_one_engine(family, options, prompt);
  options.fixed_costs->token_seconds = 1e-15;
  options.fixed_costs->attention_seconds = 0;
  Engine engine(family.ops(), family.file(), options);
  wait_for_link(engine);
  std::vector<int32_t> beginning(prompt.begin(), prompt.begin() + 130);
  generate(engine, {.model = "base", .prompt = beginning, .max_tokens = 1});
  Outcome outcome = generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 4});
  EXPECT_EQ(outcome.report.cached_tokens, 128);
  EXPECT_EQ(engine.metrics().store.of(Tier::kRemote).hits, 0u);
}

}  // namespace
}  // namespace droidspeak
