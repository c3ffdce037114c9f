// What the engine counts of its requests, and what it learns from them.
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include <gtest/gtest.h>

#include "base/test_wait.h"
#include "engine/shared_family.h"
#include "support/forwarding_ops.h"

namespace droidspeak {
namespace {

// Calls back whenever something is computed.
class AskingOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;

  void attention(TensorView qkv,
                 const AttentionOptions& options,
                 std::span<const SequenceSlice> slices,
                 const KvLayerView& kv,
                 TensorView out) override {
    if (ask) ask(slices.size());
    ForwardingOps::attention(qkv, options, slices, kv, out);
  }

  std::function<void(size_t)> ask;  // by the number of sequences
};

TEST(EngineCounts, AgreeWithTheReportsOfTheRequests) {
  SharedFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  std::vector<int32_t> prompt = question(1, 256, 30);
  Outcome sender = generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 5});
  GenerationRequest request = by_name("alpha", prompt, "0,2,3");
  request.max_tokens = 3;
  Outcome receiver = generate(engine, request);
  ASSERT_TRUE(sender.finished && receiver.finished);
  EngineMetrics metrics = engine.metrics();
  EXPECT_EQ(metrics.requests_finished_length, 2u);
  EXPECT_EQ(metrics.requests_finished_stop, 0u);
  EXPECT_EQ(metrics.prompt_tokens, 2u * 286);
  EXPECT_EQ(metrics.prefix_cache_queries, 2u * 286);
  EXPECT_EQ(metrics.prefix_cache_hits, 256u);
  EXPECT_EQ(metrics.generation_tokens, 8u);
  EXPECT_EQ(metrics.time_per_output_token_seconds.count, 6u) << "the first ones are no such";
  EXPECT_EQ(metrics.e2e_seconds.count, 2u);
  EXPECT_EQ(metrics.queue_seconds.count, 2u);
  EXPECT_EQ(metrics.ttft_seconds.count, 2u);
  EXPECT_EQ(metrics.predictions, 2u);
  EXPECT_EQ(metrics.layers_recomputed, 1u);
  // Of four blocks three layers and E, which is as large as one.
  EXPECT_EQ(metrics.bytes_loaded, 4 * (3 + 1) * KvLayout({4, 2, 16, DType::kF32}).layer_bytes());
  EXPECT_EQ((metrics.pairs.at({"base", "alpha"}).tokens_reused), 256u);
  const RequestCounters& alpha = metrics.variants.at("alpha");
  EXPECT_EQ(alpha.prompt_tokens, 286u);
  EXPECT_EQ(alpha.prefix_cache_hits, 256u);
  EXPECT_EQ(alpha.generation_tokens, 3u);
  EXPECT_EQ(alpha.requests_finished_length, 1u);
  EXPECT_EQ(alpha.ttft_seconds.count, 1u);
}

TEST(EngineCounts, TimesAddUp) {
  SharedFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  std::vector<int32_t> prompt = question(1, 256, 30);
  Outcome first = generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 5});
  Outcome second = generate(engine, by_name("alpha", prompt, "0,2,3"));
  double ttft = 0;
  double queue = 0;
  for (const Outcome* outcome : {&first, &second}) {
    const PrefillReport& report = outcome->report;
    EXPECT_GT(report.prefill_ms, 0);
    EXPECT_GE(report.queue_ms, 0);
    EXPECT_NEAR(report.ttft_ms, report.queue_ms + report.prefill_ms, 1e-6);
    ttft += report.ttft_ms * 1e-3;
    queue += report.queue_ms * 1e-3;
  }
  EngineMetrics metrics = engine.metrics();
  EXPECT_NEAR(metrics.measured_ttft_seconds, ttft, 1e-9);
  EXPECT_NEAR(metrics.ttft_seconds.sum, ttft, 1e-9);
  EXPECT_NEAR(metrics.queue_seconds.sum, queue, 1e-9);
  EXPECT_NEAR(metrics.load_seconds, second.report.load_ms * 1e-3, 1e-9);
  EXPECT_GT(metrics.load_seconds, 0);
  EXPECT_GT(metrics.predicted_ttft_seconds, queue);
  EXPECT_GT(metrics.compute_seconds, 0);
  EXPECT_LT(metrics.compute_seconds, metrics.e2e_seconds.sum) << "one request after the other";
  EXPECT_LT(metrics.time_per_output_token_seconds.sum, metrics.e2e_seconds.sum);
}

TEST(EngineCounts, AllComputingTakesComputeTime) {
  constexpr std::chrono::milliseconds kNap{2};
  SharedFamily family;
  AskingOps ops(family.ops());
  Engine engine(ops, family.file(), tiny_options());
  std::atomic<int> naps = 0;
  ops.ask = [&](size_t) {
    std::this_thread::sleep_for(kNap);
    ++naps;
  };
  auto slept = [&] { return naps * std::chrono::duration<double>(kNap).count(); };
  std::vector<int32_t> prompt = question(1, 256, 30);
  ASSERT_TRUE(generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 5}).finished);
  EXPECT_GE(naps, 4 * 4) << "four tokens in four layers, beside the prompt";
  EXPECT_GE(engine.metrics().compute_seconds, slept());
  ASSERT_TRUE(generate(engine, by_name("alpha", prompt, "0,2,3")).finished);
  EXPECT_GE(engine.metrics().compute_seconds, slept()) << "recomputing is computing, too";
}

TEST(EngineCounts, PredictionsAreOfWhatIsDoneAndOfTheWaitBeforeIt) {
  TinyFamily family;
  EngineOptions options = tiny_options();
  Engine engine(family.ops(), family.file(), options);
  Outcome first =
      generate(engine, {.model = "base", .prompt = random_prompt(1, 200), .max_tokens = 1});
  const CostModel costs(*options.fixed_costs, 4);
  EXPECT_NEAR(engine.metrics().predicted_ttft_seconds,
              costs.prefill_seconds({.suffix_tokens = 200}) + first.report.queue_ms * 1e-3, 1e-9);
}

TEST(EngineCounts, AStopIsNoLength) {
  TinyFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  GenerationRequest request{.model = "base", .prompt = random_prompt(1, 20), .max_tokens = 5};
  Outcome free = generate(engine, request);
  ASSERT_EQ(free.tokens.size(), 5u);
  request.stop_tokens = std::set<int32_t>{free.tokens[0]};
  Outcome stopped = generate(engine, request);
  ASSERT_TRUE(stopped.finished);
  EXPECT_EQ(stopped.finished->reason, FinishReason::kStop);
  EXPECT_EQ(stopped.finished->stop_token, free.tokens[0]);
  EngineMetrics metrics = engine.metrics();
  EXPECT_EQ(metrics.requests_finished_stop, 1u);
  EXPECT_EQ(metrics.requests_finished_length, 1u);
  EXPECT_EQ(metrics.generation_tokens, 5u) << "it is no part of the answer";
}

TEST(EngineGauges, SayWhatRunsAlsoWhenAllOthersEndedAtOnce) {
  TinyFamily family;
  AskingOps ops(family.ops());
  EngineOptions options = tiny_options();
  options.max_batch_sequences = 2;
  Engine engine(ops, family.file(), options);
  std::vector<std::pair<size_t, EngineMetrics>> seen;  // by the engine thread
  ops.ask = [&](size_t num_sequences) { seen.emplace_back(num_sequences, engine.metrics()); };
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (uint32_t i = 0; i < 6; ++i) {
    streams.push_back(
        std::move(engine.submit({.model = "base", .prompt = random_prompt(i, 10), .max_tokens = 1}))
            .take_or_throw());
  }
  for (const auto& stream : streams) ASSERT_TRUE(collect(*stream).finished);
  wait_until([&] { return engine.metrics().running == 0; }, "nobody to run");
  ASSERT_GE(seen.size(), 3u * 4);
  for (const auto& [num_sequences, metrics] : seen) {
    EXPECT_EQ(metrics.running, static_cast<int32_t>(num_sequences));
    EXPECT_GT(metrics.kv_usage, 0);
  }
  EXPECT_EQ(engine.metrics().waiting, 0);
}

TEST(EngineState, SaysWhatIsServed) {
  SharedFamily family;
  Engine engine(family.ops(), family.file(), tiny_options(16));
  EngineState state = engine.state();
  EXPECT_EQ(state.family, family.models().name());
  EXPECT_EQ(state.device, family.ops().device().name());
  EXPECT_EQ(state.num_layers, 4);
  EXPECT_EQ(state.max_model_len, 16 * kBlockTokens);
  EXPECT_EQ(state.max_model_len, engine.max_model_len());
  EXPECT_EQ(state.kv_blocks_total, 16);
  EXPECT_EQ(state.kv_blocks_used, 0);
  EXPECT_EQ(state.running + state.waiting, 0);
  EXPECT_TRUE(state.is_healthy);
  ASSERT_EQ(state.variants.size(), 3u);
  for (const VariantState& variant : state.variants) {
    SCOPED_TRACE(variant.name);
    std::shared_ptr<const Variant> loaded = family.models().get(variant.name);
    const bool is_base = variant.name == "base";
    EXPECT_EQ(variant.parent, loaded->parent);
    EXPECT_EQ(variant.path, loaded->path.string());
    EXPECT_EQ(variant.digest, (is_base ? loaded->model_digest : loaded->adapter_digest).hex());
    EXPECT_EQ(variant.bytes,
              is_base ? loaded->transformer->weights().bytes() : loaded->adapter->bytes());
    EXPECT_TRUE(variant.invocation.empty());
    EXPECT_EQ(variant.takes_from,
              is_base ? std::vector<std::string>() : std::vector<std::string>{"base"});
  }
  EXPECT_EQ(engine.plan_books().size(), 2u);
}

TEST(EngineLimits, AreTheLastThatIsTaken) {
  TinyFamily family;
  Engine engine(family.ops(), family.file(), tiny_options(4));
  auto refusal = [&](GenerationRequest request) -> std::string {
    request.model = "base";
    Outcome outcome = generate(engine, std::move(request));
    return outcome.error ? outcome.error->message : "";
  };
  EXPECT_EQ(refusal({.prompt = random_prompt(1, 255), .max_tokens = 1}), "");
  EXPECT_EQ(refusal({.prompt = random_prompt(1, 256), .max_tokens = 1}),
            "prompt: 256 tokens, and the context length is 256");
  EXPECT_EQ(
      refusal({.prompt = random_prompt(1, 256), .max_tokens = 0, .wants_prompt_logprobs = true}),
      "");
  EXPECT_NE(
      refusal({.prompt = random_prompt(1, 257), .max_tokens = 0, .wants_prompt_logprobs = true}),
      "");
  EXPECT_EQ(refusal({.prompt = {0, 319}, .max_tokens = 1}), "");
  EXPECT_EQ(refusal({.prompt = {0, 320}, .max_tokens = 1}),
            "prompt: token 320 is not in the vocabulary of 320");
  EXPECT_EQ(refusal({.prompt = {1}, .max_tokens = -1}), "max_tokens is -1: give 0 or more");
  EXPECT_NE(refusal({.prompt = {1}, .max_tokens = 1, .min_tokens = -1}), "");
  EXPECT_EQ(refusal({.prompt = {1}, .max_tokens = 1, .min_tokens = 1}), "");
  EXPECT_EQ(refusal({.prompt = {1}, .max_tokens = 1, .wants_embedding = true}),
            "max_tokens is 1: give 0 with an embedding");
  EXPECT_NE(refusal({.prompt = {1}, .max_tokens = 0, .wants_embedding = true})
                .find("the family declares no pooling"),
            std::string::npos);
}

// Decode rows cost a pass over the weights, whatever their number.
TEST(EngineCosts, AreLearntFromPromptsAndNotFromDecoding) {
  TinyFamily family;
  EngineOptions options = tiny_options();
  options.fixed_costs.reset();
  Engine engine(family.ops(), family.file(), options);
  auto predicted = [&](uint32_t seed, int32_t prompt_tokens, int32_t max_tokens) {
    double before = engine.metrics().predicted_ttft_seconds;
    Outcome outcome = generate(
        engine,
        {.model = "base", .prompt = random_prompt(seed, prompt_tokens), .max_tokens = max_tokens});
    return engine.metrics().predicted_ttft_seconds - before - outcome.report.queue_ms * 1e-3;
  };
  double first = predicted(1, 20, 24);
  EXPECT_GT(first, 0);
  double after_decoding = predicted(2, 20, 1);
  EXPECT_NEAR(after_decoding / first, 1, 1e-6);
  predicted(3, 90, 1);
  EXPECT_GT(std::abs(predicted(4, 20, 1) / first - 1), 1e-6) << "a prompt long enough teaches";
}

}  // namespace
}  // namespace droidspeak
