// Caches shared across variants, through the whole engine.
#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <thread>

#include <gtest/gtest.h>

#include "base/test_wait.h"
#include "engine/engine.h"
#include "engine/shared_family.h"

namespace droidspeak {
namespace {

TEST(Sharing, ReceiverStartsFromTheSendersCache) {
  SharedFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  std::vector<int32_t> prompt = question(1, 256, 30);
  generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 1});
  Outcome outcome = generate(engine, by_name("alpha", prompt, "0,2,3"));
  EXPECT_EQ(outcome.report.sender, "base");
  EXPECT_EQ(outcome.report.plan, "0,2,3");
  EXPECT_EQ(outcome.report.reused_tokens, 256);
  EXPECT_EQ(outcome.report.recomputed_layers, 1);
  EXPECT_EQ(outcome.report.fallback, "");
  EngineMetrics metrics = engine.metrics();
  EXPECT_EQ((metrics.pairs[{"base", "alpha"}].hits), 1u);
  EXPECT_EQ(metrics.hits_by_tier["host"], 1u);
  EXPECT_GT(metrics.bytes_loaded, 0u);
}

TEST(Sharing, OwnCacheWithAnyPlanEqualsFullPrefill) {
  SharedFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  std::vector<int32_t> prompt = question(2, 320, 17);
  std::vector<int32_t> expected = family.reference_greedy("base", prompt, 12);
  EXPECT_EQ(generate(engine, by_name("base", prompt, "full")).tokens, expected);
  for (const char* plan : {"reuse", "0,2,3", "0,1,4", "1,2,3", "2,2,4", "0,0,3", "full"}) {
    EXPECT_EQ(generate(engine, by_name("base", prompt, plan)).tokens, expected) << plan;
  }
}

TEST(Sharing, BatchedEqualsSingleWithSharing) {
  SharedFamily family;
  const char* plans[] = {"reuse", "0,2,3", "0,1,4", "full"};
  std::vector<GenerationRequest> requests;
  for (uint32_t i = 0; i < 8; ++i) {
    std::string model = i % 2 == 0 ? "alpha" : "beta";
    requests.push_back(
        by_name(model, question(i, 256, 10 + static_cast<int32_t>(i)), plans[i % 4]));
  }
  auto prepared = [&](int32_t num_blocks) {
    auto engine = std::make_unique<Engine>(family.ops(), family.file(), tiny_options(num_blocks));
    generate(*engine, {.model = "base", .prompt = question(0, 256, 1), .max_tokens = 1});
    return engine;
  };
  std::vector<std::vector<int32_t>> single;
  for (const GenerationRequest& request : requests) {
    auto engine = prepared(64);
    Outcome outcome = generate(*engine, request);
    EXPECT_EQ(outcome.report.plan, request.sharing.plan);
    single.push_back(outcome.tokens);
  }
  for (int32_t num_blocks : {64, 14}) {  // the second one has to preempt or wait
    auto engine = prepared(num_blocks);
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (const GenerationRequest& request : requests)
      streams.push_back(std::move(engine->submit(request)).take_or_throw());
    for (size_t i = 0; i < streams.size(); ++i)
      EXPECT_EQ(collect(*streams[i]).tokens, single[i]) << "request " << i;
  }
}

TEST(Sharing, PreemptedReceiverKeepsItsPlan) {
  SharedFamily family;
  auto run = [&](int32_t num_blocks) {
    Engine engine(family.ops(), family.file(), tiny_options(num_blocks));
    generate(engine, {.model = "base", .prompt = question(0, 128, 1), .max_tokens = 1});
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (uint32_t i = 0; i < 4; ++i) {
      GenerationRequest request = by_name("alpha", question(i, 128, 20), "0,2,3");
      request.max_tokens = 220;
      streams.push_back(std::move(engine.submit(request)).take_or_throw());
    }
    std::vector<std::vector<int32_t>> outputs;
    for (auto& stream : streams) outputs.push_back(collect(*stream).tokens);
    EXPECT_EQ(engine.metrics().preemptions > 0, num_blocks < 64);
    return outputs;
  };
  EXPECT_EQ(run(64), run(11));
}

// An answer that has to go on without its sender's cache says from which token on.
TEST(Sharing, PreemptedReceiverWhoseCacheIsGoneSaysSo) {
  SharedFamily family;
  family.add_book("alpha", "beta", {{ReusePlan{0, 2, 3}, 1.0}});
  auto run = [&](int32_t num_blocks) {
    Engine engine(family.ops(), family.file(), tiny_options(num_blocks));
    generate(engine, {.model = "alpha", .prompt = question(0, 128, 1), .max_tokens = 1});
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (uint32_t i = 0; i < 4; ++i) {
      GenerationRequest request = by_name("beta", question(i, 128, 20), "0,2,3");
      request.sharing.sender = "alpha";
      request.max_tokens = 220;
      streams.push_back(std::move(engine.submit(request)).take_or_throw());
    }
    if (num_blocks < 64) {
      EXPECT_TRUE(streams[0]->next(std::chrono::seconds(60))) << "it is being answered";
      EXPECT_TRUE(engine.unload_adapter("alpha"));
    }
    std::vector<Outcome> outcomes;
    for (auto& stream : streams) outcomes.push_back(collect(*stream));
    return outcomes;
  };
  const std::vector<Outcome> whole = run(64);
  for (const Outcome& outcome : whole) EXPECT_EQ(outcome.report.fallback, "");
  // Of those that the sender's cache is taken from in mid-answer; it may go too early or too late.
  auto num_changed_of = [&](const std::vector<Outcome>& changed) {
    size_t num_changed = 0;
    for (size_t i = 1; i < whole.size(); ++i) {
      const PrefillReport& report = changed[i].report;
      if (report.sender.empty()) continue;  // it began after the cache had gone
      if (report.fallback.empty()) {
        EXPECT_EQ(changed[i].tokens, whole[i].tokens);
        continue;
      }
      ++num_changed;
      EXPECT_EQ(report.plan, "0,2,3");
      EXPECT_EQ(report.fallback_reason, "no_cache");
      EXPECT_GT(report.fallback_after_tokens, 0);
      auto kept = std::min<ptrdiff_t>(report.fallback_after_tokens, std::ssize(whole[i].tokens));
      EXPECT_TRUE(std::equal(whole[i].tokens.begin(), whole[i].tokens.begin() + kept,
                             changed[i].tokens.begin()));
    }
    return num_changed;
  };
  wait_until([&] { return num_changed_of(run(11)) > 0; }, "a cache that goes in mid-answer");
}

TEST(Sharing, NothingIsSharedBelowTheQualityFloorOrWhenSwitchedOff) {
  SharedFamily family;
  EngineOptions options = tiny_options();
  options.checks = EngineOptions::Checks::kNone;
  Engine engine(family.ops(), family.file(), options);
  std::vector<int32_t> prompt = question(1, 1920, 10);
  generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 1});
  GenerationRequest strict{.model = "alpha", .prompt = prompt, .max_tokens = 1, .min_quality = 1.0};
  GenerationRequest off{.model = "beta",
                        .prompt = prompt,
                        .max_tokens = 1,
                        .sharing = {SharingRequest::Mode::kOff, {}, {}}};
  EXPECT_EQ(generate(engine, strict).report.cached_tokens, 0);
  EXPECT_EQ(generate(engine, off).report.cached_tokens, 0);
}

TEST(Sharing, AutoTakesTheCheapestGoodPlan) {
  SharedFamily family;
  EngineOptions options = tiny_options();
  options.checks = EngineOptions::Checks::kNone;
  Engine engine(family.ops(), family.file(), options);
  std::vector<int32_t> prompt = question(1, 1920, 10);
  generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 1});
  PrefillReport report =
      generate(engine, {.model = "alpha", .prompt = prompt, .max_tokens = 1}).report;
  EXPECT_EQ(report.sender, "base");
  EXPECT_EQ(report.plan, "0,2,3");
  PrefillReport again =
      generate(engine, {.model = "alpha", .prompt = prompt, .max_tokens = 1}).report;
  EXPECT_EQ(again.plan, "0,2,3") << "the mixed cache stands for the plan that made it";
  EXPECT_EQ(again.recomputed_layers, 0);
  PrefillReport poor =
      generate(engine, {.model = "beta", .prompt = prompt, .max_tokens = 1, .min_quality = 0.1})
          .report;
  EXPECT_EQ(poor.plan, "reuse");
}

GenerationRequest from_sender(const std::string& model,
                              std::vector<int32_t> prompt,
                              const std::string& sender) {
  return {.model = model,
          .prompt = std::move(prompt),
          .max_tokens = 12,
          .sharing = {SharingRequest::Mode::kExplicit, sender, "auto"}};
}

// The target decides while nobody waits: the best that meets it, the fastest when none does.
TEST(Sharing, LatencyTargetBuysQuality) {
  SharedFamily family;
  EngineOptions options = tiny_options(128);
  options.checks = EngineOptions::Checks::kNone;
  options.fixed_costs->token_seconds = 1;  // far more than the test takes
  options.fixed_costs->attention_seconds = 0;
  Engine engine(family.ops(), family.file(), options);
  generate(engine, {.model = "base", .prompt = question(0, 1920, 1), .max_tokens = 1});
  auto plan_within = [&](double seconds, uint32_t seed) {  // of computing a token in a layer
    GenerationRequest request{
        .model = "alpha", .prompt = question(seed, 1920, 10), .max_tokens = 1, .ttft_slo_ms = {}};
    request.ttft_slo_ms = seconds * 1e3;
    return generate(engine, request).report.plan;
  };
  EXPECT_EQ(plan_within(1, 1), "0,2,3") << "none meets it; reuse is too poor";
  EXPECT_EQ(plan_within(1 * 1920 + 40 + 500, 2), "0,2,3");
  EXPECT_EQ(plan_within(3 * 1920 + 40 + 500, 3), "0,1,4");
  EXPECT_EQ(plan_within(4 * 1930 + 500, 4), "full");
}

TEST(Sharing, RequestsThatWaitBuyThroughput) {
  SharedFamily family;
  EngineOptions options = tiny_options(128);
  options.checks = EngineOptions::Checks::kNone;
  options.max_batch_sequences = 1;
  options.ttft_slo_ms = 1e9;  // everything meets it
  Engine engine(family.ops(), family.file(), options);
  generate(engine, {.model = "base", .prompt = question(0, 1920, 1), .max_tokens = 1});
  auto running = engine.submit({.model = "base", .prompt = {1, 2, 3}, .max_tokens = 3000});
  ASSERT_TRUE((*running)->next(std::chrono::seconds(60)));
  auto first = engine.submit(from_sender("alpha", question(1, 1920, 10), "base"));
  auto second = engine.submit(from_sender("beta", question(2, 1920, 10), "base"));
  wait_until([&] { return engine.metrics().waiting >= 2; }, "two that wait behind the first");
  (*running)->cancel();
  EXPECT_EQ(collect(**first).report.plan, "0,2,3") << "one waits behind it";
  EXPECT_EQ(collect(**second).report.plan, "full");
}

TEST(Sharing, MixedCachesOfTwoSendersStayApart) {
  SharedFamily family;
  family.add_book("alpha", "beta", {{{0, 2, 3}, kGood}});
  Engine engine(family.ops(), family.file(), tiny_options());
  std::vector<int32_t> prompt = question(1, 256, 100);
  for (const char* sender : {"base", "alpha"}) {
    generate(engine, {.model = sender,
                      .prompt = prompt,
                      .max_tokens = 1,
                      .sharing = {SharingRequest::Mode::kOff, {}, {}}});
  }
  std::map<std::string, std::vector<int32_t>> first;
  for (const char* sender : {"base", "alpha"}) {
    Outcome outcome = generate(engine, from_sender("beta", prompt, sender));
    EXPECT_EQ(outcome.report.sender, sender);
    EXPECT_EQ(outcome.report.recomputed_layers, 1);
    first[sender] = outcome.tokens;
    Engine fresh(family.ops(), family.file(), tiny_options());
    generate(fresh, {.model = sender, .prompt = prompt, .max_tokens = 1});
    EXPECT_EQ(outcome.tokens, generate(fresh, from_sender("beta", prompt, sender)).tokens);
  }
  EXPECT_NE(first["base"], first["alpha"]) << "so that mixing them up would be seen";
  for (const char* sender : {"alpha", "base", "alpha"}) {
    Outcome outcome = generate(engine, from_sender("beta", prompt, sender));
    EXPECT_EQ(outcome.report.sender, sender);
    EXPECT_EQ(outcome.report.recomputed_layers, 0) << "from its mixed cache";
    EXPECT_EQ(outcome.tokens, first[sender]);
  }
}

TEST(Sharing, MixedCachesAreNeverSent) {
  SharedFamily family;
  family.add_book("alpha", "beta", {{{0, 2, 3}, kGood}});
  Engine engine(family.ops(), family.file(), tiny_options());
  std::vector<int32_t> prompt = question(1, 256, 10);
  generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 1});
  ASSERT_EQ(generate(engine, by_name("alpha", prompt, "0,2,3")).report.sender, "base");
  GenerationRequest request{.model = "beta",
                            .prompt = prompt,
                            .max_tokens = 1,
                            .sharing = {SharingRequest::Mode::kExplicit, "alpha", "0,2,3"}};
  Outcome outcome = generate(engine, request);
  EXPECT_EQ(outcome.report.sender, "");
  EXPECT_NE(outcome.report.fallback, "");
}

TEST(Sharing, ReplacedSenderIsNotASenderAnyMore) {
  TinyFamily family;
  family.add_book("alpha", "beta", {{{0, 0, 0}, 1.0}});
  Engine engine(family.ops(), family.file(), tiny_options());
  std::vector<int32_t> prompt = question(1, 256, 10);
  GenerationRequest request{.model = "beta",
                            .prompt = prompt,
                            .max_tokens = 4,
                            .sharing = {SharingRequest::Mode::kExplicit, "alpha", "reuse"}};
  generate(engine, {.model = "alpha", .prompt = prompt, .max_tokens = 1});
  EXPECT_EQ(generate(engine, request).report.sender, "alpha");
  write_tiny_adapter(family.folder() / "other", {}, {.seed = 999});
  ASSERT_TRUE(engine.load_adapter("alpha", family.folder() / "other"));
  EXPECT_EQ(engine.submit(request).error().code, ErrorCode::kInvalidArgument);
  Outcome outcome = generate(engine, {.model = "beta", .prompt = prompt, .max_tokens = 4});
  EXPECT_EQ(outcome.report.sender, "");
}

TEST(Sharing, AContextIsStoredOnceForAllItsReceivers) {
  SharedFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  // A prompt's blocks are stored before its second token is there.
  generate(engine, {.model = "base", .prompt = question(0, 256, 1), .max_tokens = 2});
  auto added_bytes = [&](const std::string& model, const std::string& plan) {
    uint64_t before = engine.metrics().store.of(Tier::kHost).bytes;
    Outcome outcome = generate(engine, by_name(model, question(1, 256, 10), plan));
    EXPECT_EQ(outcome.report.reused_tokens, 256);
    return engine.metrics().store.of(Tier::kHost).bytes - before;
  };
  size_t layer_bytes = KvLayout{4, 2, 16, DType::kF32}.layer_bytes();
  for (const char* model : {"alpha", "beta"}) {
    EXPECT_EQ(added_bytes(model, "reuse"), 0u);
    EXPECT_EQ(added_bytes(model, "0,2,3"), 4 * layer_bytes) << "the recomputed layer";
    EXPECT_EQ(added_bytes(model, "0,2,3"), 0u) << "it is there already";
  }
}

TEST(Sharing, OwnMixedCacheGivesTheAnswerOfTheFirstTime) {
  SharedFamily family;
  EngineOptions options = tiny_options();
  options.checks = EngineOptions::Checks::kNone;
  for (double floor : {0.99, 0.1}) {  // plans 0,2,3 and reuse
    Engine engine(family.ops(), family.file(), options);
    generate(engine, {.model = "base", .prompt = question(0, 1920, 1), .max_tokens = 1});
    GenerationRequest request{
        .model = "alpha", .prompt = question(1, 1920, 200), .max_tokens = 12, .min_quality = floor};
    Outcome first = generate(engine, request);
    Outcome again = generate(engine, request);
    EXPECT_EQ(first.report.reused_tokens, 1920);
    EXPECT_EQ(again.report.reused_tokens, 1920);
    EXPECT_EQ(again.report.cached_tokens, 2112) << "with the blocks behind the context";
    EXPECT_EQ(again.report.plan, first.report.plan);
    EXPECT_EQ(again.report.recomputed_layers, 0);
    EXPECT_EQ(again.tokens, first.tokens);
  }
}

// Requests that are submitted at once; reports and tokens in their order.
std::vector<Outcome> generate_together(Engine& engine, const std::vector<GenerationRequest>& all) {
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (const GenerationRequest& one : all)
    streams.push_back(std::move(engine.submit(one)).take_or_throw());
  std::vector<Outcome> outcomes;
  for (auto& stream : streams) outcomes.push_back(collect(*stream));
  return outcomes;
}

int num_recomputed(const std::vector<Outcome>& outcomes) {
  return static_cast<int>(std::ranges::count_if(
      outcomes, [](const Outcome& outcome) { return outcome.report.recomputed_layers > 0; }));
}

TEST(Sharing, PlansThatAreBeingFollowedAreFollowedOnce) {
  SharedFamily family;
  EngineOptions options = tiny_options(256);
  options.checks = EngineOptions::Checks::kNone;
  for (const char* sender : {"", "base"}) {
    Engine engine(family.ops(), family.file(), options);
    generate(engine, {.model = "base", .prompt = question(0, 1920, 1), .max_tokens = 1});
    std::vector<GenerationRequest> requests;
    for (uint32_t i = 0; i < 4; ++i) {  // two questions, twice each
      requests.push_back({.model = "alpha", .prompt = question(i / 2, 1920, 30), .max_tokens = 8});
      if (*sender != 0) requests.back().sharing = {SharingRequest::Mode::kExplicit, sender, "auto"};
    }
    std::vector<Outcome> outcomes = generate_together(engine, requests);
    EXPECT_EQ(num_recomputed(outcomes), 1) << "the others wait for the first";
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.report.plan, "0,2,3");
      EXPECT_EQ(outcome.report.reused_tokens, 1920);
    }
    EXPECT_EQ(outcomes[0].tokens, outcomes[1].tokens);
    EXPECT_EQ(outcomes[2].tokens, outcomes[3].tokens);
    Outcome alone = generate(engine, by_name("alpha", question(1, 1920, 30), "0,2,3"));
    alone.tokens.resize(8);
    EXPECT_EQ(outcomes[3].tokens, alone.tokens);
  }
}

TEST(Sharing, NobodyWaitsForAPlanItWouldNotFollowOrHasNoTimeFor) {
  SharedFamily family;
  EngineOptions options = tiny_options(256);
  options.checks = EngineOptions::Checks::kNone;
  Engine engine(family.ops(), family.file(), options);
  generate(engine, {.model = "base", .prompt = question(0, 1920, 1), .max_tokens = 1});
  GenerationRequest plain{.model = "alpha", .prompt = question(1, 1920, 30), .max_tokens = 8};
  GenerationRequest finer = plain;
  finer.min_quality = 0.998;  // plan 0,1,4
  GenerationRequest named = by_name("alpha", plain.prompt, "0,2,3");
  GenerationRequest salted = plain;
  salted.cache_salt = "other";
  GenerationRequest other = plain;
  other.prompt = question(2, 64, 1950);  // the first block only is the same
  std::vector<Outcome> outcomes = generate_together(engine, {plain, finer, named, salted, other});
  EXPECT_EQ(outcomes[0].report.plan, "0,2,3");
  EXPECT_EQ(outcomes[1].report.plan, "0,1,4");
  EXPECT_GT(outcomes[1].report.recomputed_layers, 0);
  EXPECT_GT(outcomes[2].report.recomputed_layers, 0);
  EXPECT_EQ(outcomes[3].report.sender, "");
  EXPECT_EQ(outcomes[3].tokens, family.reference_greedy("alpha", plain.prompt, 8));
}

// The answer follows from plan, sender and the tokens that the report says were the sender's,
// whatever was read before.
TEST(Sharing, AnswersDoNotDependOnWhatWasCachedBefore) {
  SharedFamily family;
  EngineOptions options = tiny_options(256);
  options.checks = EngineOptions::Checks::kNone;
  std::vector<int32_t> prompt = question(1, 1920, 100);
  auto read = [&](Engine& engine, size_t num_tokens) {
    std::vector<int32_t> begin(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(num_tokens));
    generate(engine, {.model = "base", .prompt = begin, .max_tokens = 1});
  };
  GenerationRequest request{.model = "alpha", .prompt = prompt, .max_tokens = 12};
  auto expected = [&](const PrefillReport& report) {
    if (report.sender.empty()) return family.reference_greedy("alpha", prompt, 12);
    Engine fresh(family.ops(), family.file(), options);
    read(fresh, static_cast<size_t>(report.reused_tokens) + 1);
    Outcome outcome = generate(fresh, by_name("alpha", prompt, report.plan));
    EXPECT_EQ(outcome.report.reused_tokens, report.reused_tokens);
    return outcome.tokens;
  };
  std::vector<Outcome> outcomes;
  {
    Engine engine(family.ops(), family.file(), options);
    for (size_t num_tokens : {size_t{1281}, size_t{1601}, prompt.size()}) {
      read(engine, num_tokens);
      for (int i = 0; i < 2; ++i) {
        outcomes.push_back(generate(engine, request));
        outcomes.push_back(generate(engine, by_name("alpha", prompt, "0,2,3+20%")));
        outcomes.push_back(generate(engine, by_name("alpha", prompt, "reuse+10%r")));
      }
    }
  }
  EXPECT_EQ(outcomes[0].report.reused_tokens, 1280);
  EXPECT_EQ(outcomes[3].report.recomputed_layers, 0) << "a mixed cache";
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.tokens, expected(outcome.report)) << outcome.report.reused_tokens;
  }
}

TranslationMaps maps_with(float value) {
  TranslationMaps maps;
  for (int32_t layer = 0; layer < 4; ++layer)
    maps.kv[layer] = {1, std::vector<float>(64, value), std::vector<float>(64, 0.01f),
                      std::vector<float>(64, 0.0f)};
  return maps;
}

TEST(Sharing, MapsThatCannotBeUsedCostTheirPlansAndNoAnswer) {
  TinyFamily family;
  family.add_book("base", "alpha", {{{0, 0, 3}, kGood}}, maps_with(0.01f));
  family.add_book("base", "beta", {{{0, 0, 3}, kGood}},
                  maps_with(std::numeric_limits<float>::quiet_NaN()));
  EngineOptions options = tiny_options();
  options.checks = EngineOptions::Checks::kNone;
  std::vector<int32_t> prompt = question(1, 1920, 10);
  Engine engine(family.ops(), family.file(), options);
  save_translation(family.folder() / "base-alpha.safetensors", maps_with(0.02f));  // too late
  generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 1});
  for (const char* model : {"alpha", "beta"}) {
    Outcome named = generate(engine, by_name(model, prompt, "0,0,3"));
    Outcome chosen = generate(engine, {.model = model, .prompt = prompt, .max_tokens = 12});
    EXPECT_NE(named.report.fallback, "");
    EXPECT_EQ(named.report.plan, "full");
    EXPECT_EQ(chosen.report.sender, "");
    std::vector<int32_t> computed = family.reference_greedy(model, prompt, 12);
    EXPECT_EQ(named.tokens, computed) << model;
    EXPECT_EQ(chosen.tokens, computed) << model;
    Outcome raw = generate(engine, by_name(model, prompt, "0,0,3r"));
    EXPECT_EQ(raw.report.plan, "0,0,3") << "raw needs no maps";
  }
  EXPECT_EQ(engine.metrics().fallbacks["maps_unusable"], 2u);
}

TEST(Sharing, RefusesPlansAndSendersThatDoNotExist) {
  SharedFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  auto code = [&](const std::string& sender, const std::string& plan,
                  const std::string& model = "alpha") {
    GenerationRequest request{.model = model,
                              .prompt = {1, 2},
                              .sharing = {SharingRequest::Mode::kExplicit, sender, plan}};
    auto stream = engine.submit(request);
    return stream ? std::optional<ErrorCode>() : stream.error().code;
  };
  EXPECT_EQ(code("base", "auto"), std::nullopt);
  EXPECT_EQ(code("base", "0,1,2r"), std::nullopt);
  EXPECT_EQ(code("", "full"), std::nullopt);
  EXPECT_EQ(code("nobody", "reuse"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("beta", "reuse"), ErrorCode::kInvalidArgument) << "no plan book for the pair";
  EXPECT_EQ(code("base", "0,3,4"), ErrorCode::kInvalidArgument) << "no E at layer 3";
  EXPECT_EQ(code("base", "0,2,9"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("base", "2,1,0"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("base", "nonsense"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("base", ""), ErrorCode::kInvalidArgument);
}

TEST(Sharing, MissingCacheMeansFullPrefill) {
  SharedFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  std::vector<int32_t> prompt = question(1, 256, 10);
  Outcome outcome = generate(engine, by_name("alpha", prompt, "0,2,3"));
  EXPECT_EQ(outcome.tokens, family.reference_greedy("alpha", prompt, 12));
  EXPECT_EQ(outcome.report.plan, "full");
  EXPECT_NE(outcome.report.fallback, "");
  EXPECT_EQ(engine.metrics().fallbacks["no_cache"], 1u);
}

// Overwrites every stored byte on disk behind the headers.
TEST(Sharing, EngineModesChangeWhatAutoDoes) {
  SharedFamily family;
  std::vector<int32_t> prompt = question(1, 1920, 10);
  auto report_with = [&](SharingMode mode) {
    EngineOptions options = tiny_options();
    options.checks = EngineOptions::Checks::kNone;
    options.sharing = mode;
    Engine engine(family.ops(), family.file(), options);
    generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 1});
    return generate(engine, {.model = "alpha", .prompt = prompt, .max_tokens = 1}).report;
  };
  EXPECT_EQ(report_with(SharingMode::kOff).sender, "");
  EXPECT_EQ(report_with(SharingMode::kPlainReuse).plan, "reuse");
  EXPECT_EQ(report_with(SharingMode::kOn).plan, "0,2,3");
}

}  // namespace
}  // namespace droidspeak
