// A disk that is slow or hangs costs its hits, never an answer and never other requests' time.
#include <future>
#include <thread>

#include <gtest/gtest.h>

#include "base/test_wait.h"
#include "engine/engine.h"
#include "engine/engine_fixture.h"
#include "sharing/transfer_threads.h"
#include "store/gated_file_system.h"

namespace droidspeak {
namespace {

using namespace std::chrono_literals;

// Plan 0,2,3 reads 20 pieces: of four blocks the header, E and three layers.
constexpr uint64_t kReads[] = {0, 4, 9, 14, 19};

// The sender's cache of a prompt lies on a disk behind a gate.
class SlowDisk : public testing::Test {
 protected:
  SlowDisk() {
    family_.add_book("base", "alpha", {{{0, 0, 0}, 0.5}, {{0, 2, 3}, 0.995}});
    options_ = tiny_options();
    options_.store.disk_folder = disk_.path();
    options_.store.file_system = &files_;
    {
      Engine engine(family_.ops(), family_.file(), options_);
      generate(engine, {.model = "base", .prompt = prompt_, .max_tokens = 1});
      shared_ = generate(engine, request("0,2,3")).tokens;
    }
    computed_ = family_.reference_greedy("alpha", prompt_, 12);
    other_computed_ = family_.reference_greedy("base", other_prompt_, 12);
    options_.store.host_bytes = 0;
  }

  GenerationRequest request(const std::string& plan) const {
    return {.model = "alpha",
            .prompt = prompt_,
            .max_tokens = 12,
            .sharing = {SharingRequest::Mode::kExplicit, "base", plan}};
  }

  GenerationRequest other_request() const {
    return {.model = "base",
            .prompt = other_prompt_,
            .max_tokens = 12,
            .sharing = {SharingRequest::Mode::kExplicit, "", "full"}};  // no disk
  }

  TinyFamily family_;
  TemporaryFolder disk_;
  GatedFileSystem files_;
  EngineOptions options_;
  std::vector<int32_t> prompt_ = random_prompt(1, 266);
  std::vector<int32_t> other_prompt_ = random_prompt(2, 200);
  std::vector<int32_t> shared_;          // greedy answer with plan 0,2,3
  std::vector<int32_t> computed_;        // with full prefill
  std::vector<int32_t> other_computed_;  // of the other prompt
};

TEST_F(SlowDisk, OthersAreServedWhileALoadHangs) {
  options_.load_stall_ms = 60000;
  for (uint64_t reads : kReads) {
    Engine engine(family_.ops(), family_.file(), options_);
    files_.close_gate_after(reads);
    auto hanging = std::move(engine.submit(request("0,2,3"))).take_or_throw();
    files_.wait_until_hanging();
    EXPECT_EQ(generate(engine, other_request()).tokens, other_computed_);
    EXPECT_FALSE(hanging->next(0ms).has_value()) << "it cannot have its context";
    files_.open_gate();
    Outcome outcome = collect(*hanging);
    EXPECT_EQ(outcome.tokens, shared_) << reads;
    EXPECT_EQ(outcome.report.fallback, "");
  }
}

// More than a link would be, for a context that would be computed in no time.
TEST_F(SlowDisk, IsWaitedForAsLongAsWasSaid) {
  options_.load_stall_ms = 60000;
  options_.fixed_costs->token_seconds = 1e-12;
  Engine engine(family_.ops(), family_.file(), options_);
  files_.close_gate_after(6);
  auto hanging = std::move(engine.submit(request("0,2,3"))).take_or_throw();
  files_.wait_until_hanging();
  std::this_thread::sleep_for(600ms);
  EXPECT_FALSE(hanging->next(0ms).has_value());
  files_.open_gate();
  Outcome outcome = collect(*hanging);
  EXPECT_EQ(outcome.tokens, shared_);
  EXPECT_EQ(outcome.report.fallback, "");
}

TEST_F(SlowDisk, ALoadThatHangsBecomesAFullPrefill) {
  options_.load_stall_ms = 150;
  for (uint64_t reads : kReads) {
    Engine engine(family_.ops(), family_.file(), options_);
    files_.close_gate_after(reads);
    Outcome outcome = generate(engine, request("0,2,3"));
    EXPECT_EQ(outcome.tokens, computed_) << reads;
    EXPECT_EQ(outcome.report.plan, "full");
    EXPECT_NE(outcome.report.fallback, "");
    EXPECT_EQ(engine.metrics().fallbacks["load_stalled"], 1u);
    files_.open_gate();  // the straggler ends
    EXPECT_EQ(generate(engine, other_request()).tokens, other_computed_);
  }
}

TEST_F(SlowDisk, IsLeftAloneForAWhileAfterAStall) {
  options_.load_stall_ms = 150;
  Engine engine(family_.ops(), family_.file(), options_);
  files_.close_gate_after(0);
  EXPECT_EQ(generate(engine, request("0,2,3")).tokens, computed_);
  Outcome next = generate(engine, request("0,2,3"));
  EXPECT_EQ(next.tokens, computed_);
  EngineMetrics metrics = engine.metrics();
  EXPECT_EQ(metrics.fallbacks["load_stalled"], 1u);
  EXPECT_EQ(metrics.fallbacks["disk_avoided"], 1u);
  files_.open_gate();
  wait_until([&] { return generate(engine, request("0,2,3")).tokens == shared_; },
             "the disk to be asked again");
}

// Of a block in host memory only what a plan loads has to be there.
TEST_F(SlowDisk, IsNotAskedForWhatAPlanDoesNotLoad) {
  std::vector<int32_t> third_prompt = random_prompt(3, 266);
  options_.store.host_bytes = uint64_t{64} << 20;
  {
    Engine engine(family_.ops(), family_.file(), options_);
    generate(engine, {.model = "base", .prompt = third_prompt, .max_tokens = 1});
  }
  options_.load_stall_ms = 150;
  Engine engine(family_.ops(), family_.file(), options_);
  EXPECT_EQ(generate(engine, request("0,2,3")).tokens, shared_);  // layers 0, 1, 3 and E
  files_.close_gate_after(0);
  GenerationRequest third = request("0,2,3");
  third.prompt = third_prompt;
  EXPECT_EQ(generate(engine, third).report.plan, "full");
  Outcome again = generate(engine, request("0,2,3"));
  EXPECT_EQ(again.tokens, shared_);
  EXPECT_EQ(again.report.fallback, "");
  EXPECT_EQ(engine.metrics().fallbacks["disk_avoided"], 0u);
  EXPECT_EQ(generate(engine, request("reuse")).report.plan, "full") << "layer 2 is on disk";
  EXPECT_EQ(engine.metrics().fallbacks["disk_avoided"], 1u);
  files_.open_gate();
}

TEST_F(SlowDisk, LeavesTheNextBestInHostMemoryWhenItIsAvoided) {
  std::vector<int32_t> long_prompt = random_prompt(4, 1000);
  options_.store.host_bytes = uint64_t{64} << 20;
  GenerationRequest own{.model = "alpha", .prompt = long_prompt, .max_tokens = 4};
  {
    Engine engine(family_.ops(), family_.file(), options_);
    generate(engine, own);
  }
  options_.load_stall_ms = 150;
  Engine engine(family_.ops(), family_.file(), options_);
  auto head = std::span(long_prompt).first(513);
  generate(engine, {.model = "base", .prompt = {head.begin(), head.end()}, .max_tokens = 1});
  files_.close_gate_after(0);
  EXPECT_EQ(generate(engine, request("0,2,3")).report.plan, "full");
  Outcome outcome = generate(engine, own);
  EXPECT_EQ(outcome.report.sender, "base");
  EXPECT_EQ(outcome.report.plan, "0,2,3");
  EXPECT_EQ(outcome.report.reused_tokens, 512);
  EXPECT_EQ(engine.metrics().fallbacks["disk_avoided"], 1u);
  files_.open_gate();
}

TEST_F(SlowDisk, NeverTakesTheThreadsOfHostMemory) {
  options_.load_stall_ms = 60000;
  options_.store.host_bytes = uint64_t{64} << 20;
  options_.max_batch_sequences = 2 * static_cast<int32_t>(TransferThreads::kMaxThreads);
  options_.kv_bytes = 1024 * KvLayout{4, 2, 16, DType::kF32}.block_bytes();
  options_.checks = EngineOptions::Checks::kNone;
  Engine engine(family_.ops(), family_.file(), options_);
  GenerationRequest own{.model = "base", .prompt = other_prompt_, .max_tokens = 12};
  generate(engine, own);  // now in host memory
  files_.close_gate_after(0);
  std::vector<std::shared_ptr<TokenStream>> hanging;
  for (size_t i = 0; i < TransferThreads::kMaxThreads + 4; ++i)
    hanging.push_back(std::move(engine.submit(request("0,2,3"))).take_or_throw());
  files_.wait_until_hanging();
  wait_until([&] { return engine.metrics().running >= static_cast<int32_t>(hanging.size()); });
  Outcome outcome = generate(engine, own);
  EXPECT_EQ(outcome.report.cached_tokens, 192);
  EXPECT_EQ(outcome.tokens, other_computed_);
  GenerationRequest receiver = request("0,2,3");
  receiver.prompt = other_prompt_;
  EXPECT_EQ(generate(engine, receiver).report.tier, "host");  // where the device has nothing for it
  files_.open_gate();
  for (auto& stream : hanging) EXPECT_EQ(collect(*stream).tokens, shared_);
}

// Whoever would follow the same plan waits for the one who does, unless that takes too long.
TEST_F(SlowDisk, NobodyWaitsForAnotherPastItsTarget) {
  options_.load_stall_ms = 60000;
  options_.fixed_costs->token_seconds = 1;  // the plan takes 256 s, as it seems
  options_.store.host_bytes = uint64_t{64} << 20;
  for (uint32_t is_hurried : {0u, 1u}) {
    GenerationRequest one = request("auto");
    one.prompt = random_prompt(10 + is_hurried, 266);
    {
      Engine engine(family_.ops(), family_.file(), options_);
      generate(engine, {.model = "base", .prompt = one.prompt, .max_tokens = 1});
    }
    Engine engine(family_.ops(), family_.file(), options_);
    files_.close_gate_after(0);
    auto first = std::move(engine.submit(one)).take_or_throw();
    files_.wait_until_hanging();
    if (is_hurried == 1) one.ttft_slo_ms = 1000;
    auto second = std::move(engine.submit(one)).take_or_throw();
    wait_until([&] { return is_hurried == 0 || engine.metrics().running >= 2; });
    files_.open_gate();
    int32_t recomputed = collect(*first).report.recomputed_layers;
    recomputed += collect(*second).report.recomputed_layers;
    EXPECT_EQ(recomputed, is_hurried == 1 ? 2 : 1);
  }
}

TEST_F(SlowDisk, CancelledWhileItsLoadHangsGivesItsBlocksBack) {
  options_.load_stall_ms = 60000;
  options_.kv_bytes = 6 * KvLayout{4, 2, 16, DType::kF32}.block_bytes();  // one request at a time
  Engine engine(family_.ops(), family_.file(), options_);
  files_.close_gate_after(6);
  auto hanging = std::move(engine.submit(request("0,2,3"))).take_or_throw();
  files_.wait_until_hanging();
  hanging->cancel();
  auto other = std::move(engine.submit(other_request())).take_or_throw();
  files_.open_gate();  // the straggler wakes up while its blocks are the other one's
  EXPECT_EQ(collect(*other).tokens, other_computed_);
  EXPECT_TRUE(collect(*hanging).error.has_value());
}

TEST_F(SlowDisk, EngineEndsWhileALoadHangs) {
  auto* files = new GatedFileSystem;  // belongs to the read that is left behind
  options_.store.file_system = files;
  options_.load_stall_ms = 60000;
  auto engine = std::make_unique<Engine>(family_.ops(), family_.file(), options_);
  files->close_gate_after(6);
  auto hanging = std::move(engine->submit(request("0,2,3"))).take_or_throw();
  files->wait_until_hanging();
  engine->drain(10ms);
  auto ended = std::async(std::launch::async, [&] { engine.reset(); });
  EXPECT_EQ(ended.wait_for(20s), std::future_status::ready) << "it waits for the disk";
  files->open_gate();  // the straggler returns when nothing of the engine is there any more
  ended.get();
  EXPECT_TRUE(collect(*hanging).error.has_value());
  options_.store.file_system = &files_;
  Engine next(family_.ops(), family_.file(), options_);
  EXPECT_EQ(generate(next, request("0,2,3")).tokens, shared_);
}

TEST_F(SlowDisk, SteadyButSlowLoadsAreFollowed) {
  options_.load_stall_ms = 60000;
  Engine engine(family_.ops(), family_.file(), options_);
  files_.set_delay(3ms);
  Outcome outcome = generate(engine, request("0,2,3"));
  EXPECT_EQ(outcome.tokens, shared_);
  EXPECT_EQ(outcome.report.fallback, "");
}

}  // namespace
}  // namespace droidspeak
