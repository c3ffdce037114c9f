#include "engine/engine.h"

#include <atomic>
#include <map>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "base/test_wait.h"
#include "engine/engine_fixture.h"
#include "engine/slow_ops.h"

namespace droidspeak {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const char* const kNames[] = {"base", "alpha", "beta"};
constexpr std::chrono::hours kNeverReached{10};  // what is waited for ends long before

struct Case {
  GenerationRequest request;
  std::vector<int32_t> expected;
};

// Prompts of different lengths for all variants in turn, with the answers that single requests
// give.
std::vector<Case> make_cases(TinyFamily& family,
                             int32_t count,
                             int32_t max_prompt,
                             int32_t max_tokens) {
  std::vector<Case> cases;
  std::mt19937 random(17);
  for (int32_t i = 0; i < count; ++i) {
    auto size = 1 + static_cast<int32_t>(random() % static_cast<uint32_t>(max_prompt));
    std::string model = kNames[i % 3];
    std::vector<int32_t> prompt = random_prompt(static_cast<uint32_t>(i), size);
    cases.push_back({{.model = model, .prompt = prompt, .max_tokens = max_tokens},
                     family.reference_greedy(model, prompt, max_tokens)});
  }
  return cases;
}

void expect_all_blocks_free(const Engine& engine) {
  auto deadline = std::chrono::steady_clock::now() + seconds(10);
  while (engine.state().kv_blocks_used > 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  EXPECT_EQ(engine.state().kv_blocks_used, 0);
}

void expect_batched_equals_single(Engine& engine, const std::vector<Case>& cases) {
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (const Case& one : cases)
    streams.push_back(std::move(engine.submit(one.request)).take_or_throw());
  for (size_t i = 0; i < cases.size(); ++i) {
    Outcome outcome = collect(*streams[i]);
    EXPECT_EQ(outcome.tokens, cases[i].expected)
        << "request " << i << " for " << cases[i].request.model;
    ASSERT_TRUE(outcome.finished);
    EXPECT_EQ(outcome.finished->reason, FinishReason::kLength);
  }
  expect_all_blocks_free(engine);
}

TEST(Engine, BatchedEqualsSingleForMixedAdapters) {
  TinyFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  expect_batched_equals_single(engine, make_cases(family, 12, 250, 12));
  EXPECT_EQ(engine.metrics().requests_finished_length, 12u);
  EXPECT_EQ(engine.metrics().generation_tokens, 12u * 12u);
}

TEST(Engine, PreemptionDoesNotChangeTheOutput) {
  TinyFamily family;
  EngineOptions options = tiny_options(8);
  Engine engine(family.ops(), family.file(), options);
  std::vector<Case> cases = make_cases(family, 9, 60, 220);
  expect_batched_equals_single(engine, cases);
  EngineMetrics metrics = engine.metrics();
  EXPECT_GT(metrics.preemptions, 0u);
  EXPECT_LT(metrics.preemptions, 1000u);
  uint64_t prompt_tokens = 0;
  for (const Case& one : cases) prompt_tokens += one.request.prompt->size();
  EXPECT_EQ(metrics.prompt_tokens, prompt_tokens) << "whoever is read again is counted once";
  EXPECT_EQ(metrics.queue_seconds.count, cases.size());
  EXPECT_EQ(metrics.ttft_seconds.count, cases.size());
}

TEST(Engine, PreemptionDoesNotChangeSampledOutput) {
  TinyFamily family;
  auto run = [&](int32_t num_blocks) {
    Engine engine(family.ops(), family.file(), tiny_options(num_blocks));
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (uint32_t i = 0; i < 6; ++i) {
      GenerationRequest request{
          .model = kNames[i % 3],
          .prompt = random_prompt(i, 60),
          .max_tokens = 220,
          .sampling = {.temperature = 0.8f, .repetition_penalty = 1.1f, .seed = i}};
      streams.push_back(std::move(engine.submit(request)).take_or_throw());
    }
    std::vector<std::vector<int32_t>> outputs;
    for (auto& stream : streams) outputs.push_back(collect(*stream).tokens);
    EXPECT_EQ(engine.metrics().preemptions > 0, num_blocks < 64);
    return outputs;
  };
  EXPECT_EQ(run(64), run(8));
}

// Not only the tokens: every bit of what they were chosen from.
void expect_same_logprobs(const Outcome& some, const Outcome& other) {
  ASSERT_EQ(some.tokens, other.tokens);
  for (size_t t = 0; t < some.sampled.size(); ++t) {
    EXPECT_EQ(some.sampled[t].logprob, other.sampled[t].logprob) << "token " << t;
    for (size_t k = 0; k < some.sampled[t].top.size(); ++k)
      EXPECT_EQ(some.sampled[t].top[k].logprob, other.sampled[t].top[k].logprob);
  }
}

TEST(Engine, LogprobsDoNotDependOnPreemption) {
  TinyFamily family;
  auto run = [&](int32_t num_blocks) {
    Engine engine(family.ops(), family.file(), tiny_options(num_blocks));
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (uint32_t i = 0; i < 9; ++i) {
      GenerationRequest request{.model = kNames[i % 3],
                                .prompt = random_prompt(i, 20 + 40 * static_cast<int32_t>(i % 4)),
                                .max_tokens = 150,
                                .num_top_logprobs = 5};
      streams.push_back(std::move(engine.submit(request)).take_or_throw());
    }
    std::vector<Outcome> outcomes;
    for (auto& stream : streams) outcomes.push_back(collect(*stream));
    EXPECT_EQ(engine.metrics().preemptions > 0, num_blocks < 64);
    return outcomes;
  };
  const std::vector<Outcome> calm = run(64);
  const std::vector<Outcome> busy = run(8);
  for (size_t i = 0; i < calm.size(); ++i) {
    SCOPED_TRACE(i);
    expect_same_logprobs(busy[i], calm[i]);
  }
}

// A hit of all but the last token leaves a single row of the prompt to be read.
TEST(Engine, LogprobsDoNotDependOnWhatIsCached) {
  TinyFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  for (int32_t size : {65, 66, 128, 129, 193}) {
    SCOPED_TRACE(size);
    const GenerationRequest request{.model = "base",
                                    .prompt = random_prompt(static_cast<uint32_t>(size), size),
                                    .max_tokens = 8,
                                    .num_top_logprobs = 5};
    const Outcome first = generate(engine, request);
    const Outcome again = generate(engine, request);
    EXPECT_EQ(again.report.cached_tokens, (size - 1) / 64 * 64);
    expect_same_logprobs(again, first);
  }
}

TEST(Engine, LogprobsDoNotDependOnTheBatch) {
  TinyFamily family;
  std::vector<GenerationRequest> requests;
  for (uint32_t i = 0; i < 40; ++i) {
    requests.push_back({.model = kNames[i % 3],
                        .prompt = random_prompt(i, 1 + static_cast<int32_t>(i * 37 % 200)),
                        .max_tokens = 6,
                        .num_top_logprobs = 5});
  }
  EngineOptions options = tiny_options(512);
  options.checks = EngineOptions::Checks::kNone;
  std::vector<Outcome> alone;
  for (const GenerationRequest& request : requests) {
    Engine engine(family.ops(), family.file(), options);
    alone.push_back(generate(engine, request));
  }
  Engine engine(family.ops(), family.file(), options);
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (const GenerationRequest& request : requests)
    streams.push_back(std::move(engine.submit(request)).take_or_throw());
  for (size_t i = 0; i < streams.size(); ++i) {
    Outcome batched = collect(*streams[i]);
    SCOPED_TRACE(i);
    expect_same_logprobs(batched, alone[i]);
  }
}

TEST(Engine, CancellingSomeDoesNotChangeTheOthers) {
  TinyFamily family;
  Engine engine(family.ops(), family.file(), tiny_options(12));
  std::vector<Case> cases = make_cases(family, 12, 150, 60);
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (const Case& one : cases)
    streams.push_back(std::move(engine.submit(one.request)).take_or_throw());
  for (size_t i = 0; i < streams.size(); i += 2) streams[i]->cancel();
  for (size_t i = 0; i < streams.size(); ++i) {
    Outcome outcome = collect(*streams[i]);
    if (i % 2 == 1) {
      EXPECT_EQ(outcome.tokens, cases[i].expected) << "request " << i;
    } else if (outcome.error) {
      EXPECT_EQ(outcome.error->code, ErrorCode::kCancelled);
    }
  }
  expect_all_blocks_free(engine);
  EXPECT_GT(engine.metrics().requests_cancelled, 0u);
}

TEST(Engine, SeedFixesTheSampleWhateverElseRuns) {
  TinyFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  GenerationRequest request{.model = "alpha",
                            .prompt = random_prompt(5, 90),
                            .max_tokens = 20,
                            .sampling = {.temperature = 1, .top_k = 50, .top_p = 0.9f, .seed = 42}};
  std::vector<int32_t> alone = generate(engine, request).tokens;
  auto other = request;
  other.sampling.seed = 43;
  auto noise = engine.submit({.model = "beta", .prompt = random_prompt(6, 200), .max_tokens = 30});
  auto third = engine.submit(other);
  EXPECT_EQ(generate(engine, request).tokens, alone);
  EXPECT_NE(collect(**third).tokens, alone);
  collect(**noise);
}

// Tokens of one answer are drawn one after the other, and each counts for those that follow.
TEST(Engine, WhatWasSampledCountsForWhatComes) {
  TinyFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  GenerationRequest request{.model = "base", .prompt = {1, 2, 3}, .max_tokens = 6};
  request.sampling.logit_bias = std::map<int32_t, float>{{65, 1000}};
  EXPECT_EQ(generate(engine, request).tokens, std::vector<int32_t>(6, 65));
  request.sampling.presence_penalty = 1e6;
  std::vector<int32_t> tokens = generate(engine, request).tokens;
  ASSERT_EQ(tokens.size(), 6u);
  EXPECT_EQ(tokens.front(), 65);
  EXPECT_EQ(std::set(tokens.begin(), tokens.end()).size(), tokens.size()) << "none comes twice";
}

TEST(Engine, StopsAtAStopTokenAndLeavesItOut) {
  TinyFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  std::vector<int32_t> prompt = random_prompt(3, 30);
  std::vector<int32_t> expected = family.reference_greedy("base", prompt, 10);
  int32_t stop = expected[4];
  std::set<int32_t> stops = {319, stop, 7, 300, 270, 1};
  auto first = std::ranges::find_first_of(expected, stops);
  Outcome outcome =
      generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 10, .stop_tokens = stops});
  EXPECT_EQ(outcome.tokens, std::vector<int32_t>(expected.begin(), first));
  ASSERT_TRUE(outcome.finished);
  EXPECT_EQ(outcome.finished->reason, FinishReason::kStop);
  EXPECT_EQ(outcome.finished->stop_token, *first);
}

TEST(Engine, PromptLogprobsEqualTheReference) {
  TinyFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  std::vector<int32_t> prompt = random_prompt(8, 200);
  GenerationRequest request{.model = "beta",
                            .prompt = prompt,
                            .max_tokens = 0,
                            .num_top_logprobs = 2,
                            .wants_prompt_logprobs = true};
  for (int round = 0; round < 2;
       ++round) {  // the second time the prompt is in the cache, and not used
    Outcome outcome = generate(engine, request);
    ASSERT_TRUE(outcome.finished);
    EXPECT_TRUE(outcome.tokens.empty());
    EXPECT_EQ(outcome.report.cached_tokens, 0);
    ASSERT_EQ(outcome.prompt_logprobs.tokens.size(), prompt.size() - 1);
    for (size_t i : {size_t{0}, size_t{63}, size_t{64}, size_t{150}, prompt.size() - 2}) {
      std::vector<int32_t> head(prompt.begin(),
                                prompt.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      std::vector<float> logits = family.reference_logits("beta", head);
      const SampledToken& token = outcome.prompt_logprobs.tokens[i];
      EXPECT_EQ(token.token, prompt[i + 1]);
      EXPECT_NEAR(token.logprob, token_logprob(logits, prompt[i + 1]), 1e-3);
      EXPECT_EQ(token.top.size(), 2u);
    }
  }
}

TEST(Engine, LogprobsComeWithSampledTokens) {
  TinyFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  std::vector<int32_t> prompt = random_prompt(8, 20);
  Outcome outcome =
      generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 1, .num_top_logprobs = 3});
  std::vector<float> logits = family.reference_logits("base", prompt);
  ASSERT_EQ(outcome.sampled.size(), 1u);
  EXPECT_NEAR(outcome.sampled[0].logprob, token_logprob(logits, outcome.sampled[0].token), 1e-3);
  EXPECT_EQ(outcome.sampled[0].top.front().token, outcome.sampled[0].token);
}

TEST(Engine, TellsApartWaitingAndReading) {
  TinyFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  const PrefillReport report =
      generate(engine, {.model = "base", .prompt = {1, 2, 3}, .max_tokens = 1}).report;
  EXPECT_GE(report.queue_ms, 0);
  EXPECT_GT(report.prefill_ms, 0);
  EXPECT_NEAR(report.ttft_ms, report.queue_ms + report.prefill_ms, 1e-6);
}

TEST(Engine, RefusesWhatCannotBe) {
  TinyFamily family;
  Engine engine(family.ops(), family.file(), tiny_options(4));
  EXPECT_EQ(engine.max_model_len(), 4 * kBlockTokens);
  auto code = [&](GenerationRequest request) {
    return engine.submit(std::move(request)).error().code;
  };
  EXPECT_EQ(code({.model = "nobody", .prompt = {1}}), ErrorCode::kNotFound);
  EXPECT_EQ(code({.model = "base"}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.model = "base", .prompt = {320}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.model = "base", .prompt = {-1}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.model = "base", .prompt = random_prompt(1, 256)}), ErrorCode::kInvalidArgument);
  Outcome longest =
      generate(engine, {.model = "base", .prompt = random_prompt(1, 250), .max_tokens = 100});
  EXPECT_EQ(longest.tokens.size(), 6u) << "generation ends at the context length";
}

TEST(Engine, FullQueueIsExhausted) {
  TinyFamily family;
  EngineOptions options = tiny_options();
  options.max_queue = 3;
  options.max_batch_sequences = 1;
  Engine engine(family.ops(), family.file(), options);
  std::vector<std::shared_ptr<TokenStream>> streams;
  bool was_full = false;
  for (uint32_t i = 0; i < 30; ++i) {
    auto stream =
        engine.submit({.model = "base", .prompt = random_prompt(i, 200), .max_tokens = 50});
    if (stream) {
      streams.push_back(*stream);
    } else {
      EXPECT_EQ(stream.error().code, ErrorCode::kExhausted);
      was_full = true;
    }
  }
  EXPECT_TRUE(was_full);
  for (auto& stream : streams) EXPECT_EQ(collect(*stream).tokens.size(), 50u);
  for (int i = 0; i < 8; ++i) {
    EXPECT_FALSE(generate(engine, {.model = "base", .prompt = {1}, .max_tokens = 1}).error)
        << "nobody waits any more";
  }
}

TEST(Engine, DrainFinishesWhatRunsAndRefusesWhatComes) {
  TinyFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  auto running =
      engine.submit({.model = "base", .prompt = random_prompt(1, 100), .max_tokens = 40});
  engine.drain(kNeverReached);
  EXPECT_EQ(engine.submit({.model = "base", .prompt = {1}}).error().code, ErrorCode::kUnavailable);
  auto& stream = **running;
  size_t items = 0;
  while (stream.next(milliseconds(0))) ++items;
  EXPECT_EQ(items, 1u + 40u + 1u) << "everything is there when drain returns";
}

// Neither for those that ran nor for those that waited, with and without checks.
TEST(Engine, DrainDoesNotWaitForWhatWasGivenUp) {
  TinyFamily family;
  SlowOps ops(family.ops());
  ops.pause = milliseconds(20);
  for (auto checks : {EngineOptions::Checks::kNone, EngineOptions::Checks::kEachStep}) {
    EngineOptions options = tiny_options();
    options.checks = checks;
    options.max_batch_sequences = 1;
    Engine engine(ops, family.file(), options);
    ASSERT_TRUE(generate(engine, {.model = "base", .prompt = {1}, .max_tokens = 1}).finished);
    GenerationRequest endless{.model = "base", .prompt = {1, 2, 3}, .max_tokens = 3000};
    auto running = std::move(engine.submit(endless)).take_or_throw();
    ASSERT_TRUE(running->next(seconds(60)));
    auto waiting = std::move(engine.submit(endless)).take_or_throw();
    wait_until([&] { return engine.metrics().waiting == 1; });
    EngineState state = engine.state();
    EXPECT_EQ(state.running, 1);
    EXPECT_EQ(state.waiting, 1);
    EXPECT_GE(state.kv_blocks_used, 1);
    EXPECT_LT(state.kv_blocks_used, 50);
    waiting->cancel();
    Outcome left = collect(*waiting);
    ASSERT_TRUE(left.error);
    EXPECT_EQ(left.error->message, "cancelled by the reader");
    running->cancel();
    engine.drain(kNeverReached);
    Outcome cut = collect(*running);
    ASSERT_TRUE(cut.error);
    EXPECT_EQ(cut.error->code, ErrorCode::kCancelled);
    EXPECT_EQ(engine.metrics().requests_cancelled, 2u);
    EXPECT_EQ(engine.metrics().requests_failed, 0u);
  }
}

TEST(Engine, DestructionEndsEveryStream) {
  TinyFamily family;
  std::shared_ptr<TokenStream> stream;
  {
    Engine engine(family.ops(), family.file(), tiny_options());
    stream = std::move(engine.submit(
                           {.model = "base", .prompt = random_prompt(1, 2000), .max_tokens = 900}))
                 .take_or_throw();
  }
  Outcome outcome = collect(*stream);
  ASSERT_TRUE(outcome.error);
  EXPECT_EQ(outcome.error->code, ErrorCode::kUnavailable);
}

TEST(Engine, DeadlineEndsARequest) {
  TinyFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  Outcome outcome =
      generate(engine, {.model = "base",
                        .prompt = random_prompt(1, 500),
                        .max_tokens = 3000,
                        .deadline = std::chrono::steady_clock::now() + milliseconds(30)});
  ASSERT_TRUE(outcome.error);
  EXPECT_EQ(outcome.error->code, ErrorCode::kCancelled);
  EXPECT_NE(outcome.error->message.find("deadline"), std::string::npos);
  expect_all_blocks_free(engine);
}

TEST(Engine, ReplacedAdapterServesNewRequestsWhileOldOnesFinish) {
  TinyFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  std::vector<int32_t> prompt = random_prompt(4, 200);
  auto old_alpha = family.models().get("alpha");
  auto stream = engine.submit({.model = "alpha", .prompt = prompt, .max_tokens = 60});
  ASSERT_TRUE((*stream)->next(seconds(60)));  // its prefill is done
  spin_until([&] { return engine.metrics().store.of(Tier::kHost).entries > 0; });
  write_tiny_adapter(family.folder() / "other", {}, {.seed = 999});
  ASSERT_TRUE(engine.load_adapter("alpha", family.folder() / "other"));
  EXPECT_EQ(engine.metrics().store.of(Tier::kHost).entries, 0u)
      << "its caches went with the adapter";
  Outcome fresh = generate(engine, {.model = "alpha", .prompt = prompt, .max_tokens = 20});
  Outcome old = collect(**stream);
  EXPECT_EQ(old.tokens, family.reference_greedy(*old_alpha, prompt, 60));
  ModelFamily reloaded(family.ops(), family.file(), TinyFamily::exact(), {"base"});
  reloaded.add_adapter("alpha", family.folder() / "other");
  EXPECT_EQ(fresh.tokens, family.reference_greedy(*reloaded.get("alpha"), prompt, 20));
  ASSERT_TRUE(engine.load_adapter("alpha", family.folder() / "adapters/alpha"));
  Outcome back = generate(engine, {.model = "alpha", .prompt = prompt, .max_tokens = 20});
  EXPECT_EQ(back.report.cached_tokens, 0) << "nor do they come back with it";
}

TEST(Engine, AdaptersComeAndGo) {
  TinyFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  EXPECT_EQ(engine.unload_adapter("nobody").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(engine.unload_adapter("base").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(engine.load_adapter("base", family.folder() / "adapters/alpha").error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_FALSE(engine.load_adapter("gamma", family.folder() / "nowhere"));
  ASSERT_TRUE(engine.load_adapter("gamma", family.folder() / "adapters/alpha"));
  std::vector<int32_t> prompt = random_prompt(9, 40);
  Outcome outcome = generate(engine, {.model = "gamma", .prompt = prompt, .max_tokens = 5});
  EXPECT_EQ(outcome.tokens, family.reference_greedy("alpha", prompt, 5));
  ASSERT_TRUE(engine.unload_adapter("gamma"));
  EXPECT_EQ(engine.submit({.model = "gamma", .prompt = {1}}).error().code, ErrorCode::kNotFound);
}

// Passes everything on until told to fail.
class FailingOps : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;

  void fail_from_now_on() { is_failing_ = true; }

  void embed(const WeightMatrix& table, std::span<const int32_t> tokens, TensorView out) override {
    if (is_failing_) throw Failure(ErrorCode::kInternal, "the device is gone");
    ForwardingOps::embed(table, tokens, out);
  }

 private:
  std::atomic<bool> is_failing_ = false;
};

TEST(Engine, FailureOfTheDeviceFailsEverythingAndShowsInTheState) {
  TinyFamily family;
  FailingOps ops(family.ops());
  Engine engine(ops, family.file(), tiny_options());
  EXPECT_TRUE(engine.state().is_healthy);
  auto stream =
      engine.submit({.model = "base", .prompt = random_prompt(1, 100), .max_tokens = 3000});
  ASSERT_TRUE((*stream)->next(seconds(60)));
  ops.fail_from_now_on();
  Outcome outcome = collect(**stream);
  ASSERT_TRUE(outcome.error);
  EXPECT_EQ(outcome.error->code, ErrorCode::kInternal);
  EXPECT_FALSE(engine.state().is_healthy);
  EXPECT_EQ(engine.submit({.model = "base", .prompt = {1}}).error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(engine.unload_adapter("alpha").error().code, ErrorCode::kUnavailable);
  engine.drain(kNeverReached);
}

// Notes what is waited for, on a device on which nothing else does.
class TracedDevice final : public Device {
 public:
  TracedDevice(Device& inner, std::string& trace) : inner_(inner), trace_(trace) {}

  DeviceKind kind() const override { return inner_.kind(); }

  std::string name() const override { return inner_.name(); }

  Buffer allocate(size_t bytes) override { return inner_.allocate(bytes); }

  Buffer allocate_host(size_t bytes) override { return inner_.allocate_host(bytes); }

  size_t free_bytes() const override { return inner_.free_bytes(); }

  void to_device(void* device_data, const void* host_data, size_t bytes) override {
    inner_.to_device(device_data, host_data, bytes);
  }

  void to_host(void* host_data, const void* device_data, size_t bytes) override {
    inner_.to_host(host_data, device_data, bytes);
  }

  void synchronize() override { trace_ += 's'; }

  void wait(const Event& event) override { inner_.wait(event); }

  std::unique_ptr<CopyLane> make_copy_lane() override { return inner_.make_copy_lane(); }

 private:
  Device& inner_;
  std::string& trace_;
};

// Notes where batches begin (e) and layers run (l).
class TracedOps final : public ForwardingOps {
 public:
  explicit TracedOps(Ops& inner) : ForwardingOps(inner), device_(inner.device(), trace_) {}

  const std::string& trace() const { return trace_; }

  Device& device() override { return device_; }

  void embed(const WeightMatrix& table, std::span<const int32_t> tokens, TensorView out) override {
    trace_ += 'e';
    ForwardingOps::embed(table, tokens, out);
  }

  void rotate_and_store(TensorView qkv,
                        const RopeOptions& options,
                        std::span<const SequenceSlice> slices,
                        const KvLayerView& kv) override {
    trace_ += 'l';
    ForwardingOps::rotate_and_store(qkv, options, slices, kv);
  }

 private:
  std::string trace_;  // of the engine's thread
  TracedDevice device_;
};

TEST(Engine, ReadsPromptsInPiecesOfTheSizeThatWasAskedFor) {
  TinyFamily family;
  auto num_batches = [&](int32_t chunk_tokens) {
    TracedOps ops(family.ops());
    EngineOptions options = tiny_options();
    options.chunk_tokens = chunk_tokens;
    {
      Engine engine(ops, family.file(), options);
      generate(engine, {.model = "base", .prompt = random_prompt(1, 200), .max_tokens = 1});
    }
    return std::ranges::count(ops.trace(), 'e');
  };
  EXPECT_EQ(num_batches(96), 3);
  ASSERT_GE(family.ops().prefill_rows(), 200);
  EXPECT_EQ(num_batches(0), 1) << "as many rows as suit the device";
}

// A device that computes later would be charged to who asks it next.
TEST(Engine, TimesABatchOnADeviceThatHasDoneEverythingBefore) {
  TinyFamily family;
  family.add_book("base", "alpha", {{{0, 2, 3}, 0.995}});
  TracedOps ops(family.ops());
  std::vector<int32_t> prompt = random_prompt(1, 266);
  {
    Engine engine(ops, family.file(), tiny_options());
    generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 2});
    Outcome outcome =
        generate(engine, {.model = "alpha",
                          .prompt = prompt,
                          .max_tokens = 2,
                          .sharing = {SharingRequest::Mode::kExplicit, "base", "0,2,3"}});
    EXPECT_EQ(outcome.report.recomputed_layers, 1);
  }
  const std::string& trace = ops.trace();
  EXPECT_NE(trace.find("sl"), std::string::npos) << "a recomputed chunk: " << trace;
  EXPECT_EQ(trace.find("le"), std::string::npos) << "of which the next batch knows: " << trace;
}

}  // namespace
}  // namespace droidspeak
