// What the runner says of a prompt, and what it refuses. That its rows are right is shown in
// tests/parity.
#include "sharing/prompt_runner.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "sharing/plan_books.h"
#include "store/test_entries.h"
#include "support/tiny_model.h"
#include "support/watched_ops.h"

namespace droidspeak {
namespace {

using testing::HasSubstr;

class PromptRunning : public testing::Test {
 protected:
  PromptRunning() {
    options_.disk_folder = folder_.path() / "cache";
    store_ = std::make_unique<CacheStore>(options_, clock_);
    std::mt19937 random(3);
    for (int i = 0; i < 3 * kBlockTokens + 20; ++i)
      tokens_.push_back(static_cast<int32_t>(random() % 256));
  }

  PromptJob plan(const ReusePlan& cuts) const {
    return {models_.get("alpha"), models_.base(), cuts, nullptr, 3 * kBlockTokens};
  }

  PromptTimings prefill(const PromptJob& plan, int32_t chunk_tokens = 0) {
    PromptRunner runner(ops_, kv_, *store_, chunk_tokens);
    BlockTable table;
    num_rows_ = 0;
    return runner.partial_prefill(tokens_, plan, table, [&](int32_t first, TensorView hidden) {
      if (num_rows_ == 0) first_row_ = first;
      num_rows_ += hidden.rows;
    });
  }

  double cache(const std::vector<int32_t>& layers) {
    return PromptRunner(ops_, kv_, *store_).ensure_cached(*models_.base(), tokens_, layers);
  }

  static void expect_sums(const PromptTimings& timings) {
    EXPECT_GT(timings.prefill_ms, 0);
    EXPECT_GT(timings.suffix_ms, 0);
    EXPECT_NEAR(timings.prefill_ms, timings.recompute_ms + timings.look_ms + timings.suffix_ms,
                1e-9);
  }

  TemporaryFolder folder_;
  std::unique_ptr<Device> device_ = make_cpu_device();
  WatchedOps ops_{*device_};
  ModelFamily models_{ops_,
                      read_family_file(write_tiny_family(folder_.path() / "family")),
                      {.precision = Precision::kExact}};
  KvLayout layout_ = models_.config().kv_layout(DType::kF32);
  KvCache kv_{*device_, layout_, 16 * layout_.block_bytes()};
  FakeClock clock_;
  StoreOptions options_;
  std::unique_ptr<CacheStore> store_;
  std::vector<int32_t> tokens_;
  int32_t first_row_ = -1;
  int64_t num_rows_ = 0;
};

TEST_F(PromptRunning, ReadsAContextOnceAndAgainForOtherInputs) {
  EXPECT_GT(cache({}), 0);
  EXPECT_EQ(cache({}), 0);
  EXPECT_GT(cache({1}), 0) << "E was not there";
  EXPECT_EQ(cache({1}), 0);
  PromptRunner runner(ops_, kv_, *store_);
  EXPECT_EQ(runner.ensure_cached(*models_.base(), std::span(tokens_).first(kBlockTokens - 1), {1}),
            0)
      << "not a block";
  std::vector<Digest> keys = runner.keys_of(*models_.base(), tokens_);
  ASSERT_EQ(keys.size(), 3u);
  EntryId last[] = {kv(0), kv(3), input(1)};
  EXPECT_EQ(store_->longest_prefix(keys, last), 3u);
  EXPECT_GT(runner.ensure_cached(*models_.base(), tokens_, {}, "salt"), 0) << "of another tenant";
  EXPECT_EQ(kv_.pool().num_free(), 16);
}

TEST_F(PromptRunning, SaysWhatWasReusedAndHowLongThatTook) {
  cache({1});
  PromptTimings full = prefill({models_.get("alpha"), nullptr, {}, nullptr, 0});
  expect_sums(full);
  EXPECT_EQ(full.recompute_ms, 0);
  EXPECT_EQ(full.look_ms, 0);
  EXPECT_EQ(full.load_ms, 0);
  EXPECT_EQ(full.reused_tokens, 0);
  EXPECT_EQ(first_row_, 0);
  EXPECT_EQ(num_rows_, std::ssize(tokens_));
  PromptTimings shared = prefill(plan({0, 1, 3}), 32);
  expect_sums(shared);
  EXPECT_GT(shared.recompute_ms, 0);
  EXPECT_EQ(shared.look_ms, 0);
  EXPECT_GT(shared.load_ms, 0);
  EXPECT_EQ(shared.reused_tokens, 3 * kBlockTokens);
  EXPECT_EQ(shared.looked_at_tokens, 0);
  EXPECT_EQ(shared.tier, Tier::kHost);
  EXPECT_EQ(shared.fallback, "");
  EXPECT_EQ(first_row_, 3 * kBlockTokens);
  EXPECT_EQ(num_rows_, 20);
  PromptTimings looked = prefill(plan({0, 0, 0, 100}), 16);
  expect_sums(looked);
  EXPECT_GT(looked.look_ms, 0);
  EXPECT_EQ(looked.looked_at_tokens, 20) << "a tenth of 192";
  EXPECT_EQ(looked.reused_tokens, 3 * kBlockTokens);
  EXPECT_EQ(first_row_, 3 * kBlockTokens);
  EXPECT_EQ(num_rows_, 20);
}

// As the engine does, where a draft is decoded: other sums could choose other tokens.
TEST_F(PromptRunning, LooksAlongADraftAsARowOfTheAnswer) {
  cache({});
  ops_.mass_slices.clear();
  prefill(plan({0, 0, 0, 100}));
  ASSERT_FALSE(ops_.mass_slices.empty());
  const auto end = static_cast<int32_t>(tokens_.size());
  int num_drafts = 0;
  for (const SequenceSlice& slice : ops_.mass_slices) {
    if (slice.first_position < end) continue;
    ++num_drafts;
    EXPECT_EQ(slice.num_rows, 1);
    EXPECT_EQ(slice.num_prompt_rows(), 0);
  }
  EXPECT_EQ(num_drafts, models_.config().num_layers) << "one in each";
}

TEST_F(PromptRunning, NamesTheSlowestTier) {
  cache({1});
  store_.reset();
  options_.host_bytes = 0;
  store_ = std::make_unique<CacheStore>(options_, clock_);
  EXPECT_EQ(prefill(plan({0, 1, 3})).tier, Tier::kDisk);
}

TEST_F(PromptRunning, TheLastTokenIsAlwaysComputed) {
  tokens_.resize(2 * kBlockTokens);
  cache({});
  PromptTimings timings = prefill(plan({}));
  EXPECT_EQ(timings.reused_tokens, kBlockTokens);
  EXPECT_EQ(num_rows_, kBlockTokens);
  PromptJob one = plan({});
  one.context_tokens = 2 * kBlockTokens - 1;
  EXPECT_EQ(prefill(one).reused_tokens, kBlockTokens) << "whole blocks";
}

TEST_F(PromptRunning, ComputesEverythingWhenALoadFails) {
  for (const ReusePlan& cuts : {ReusePlan{0, 1, 3}, ReusePlan{0, 0, 0, 100}}) {
    PromptTimings timings = prefill(plan(cuts));
    EXPECT_THAT(timings.fallback, HasSubstr("missing"));
    EXPECT_EQ(timings.reused_tokens, 0);
    EXPECT_EQ(timings.looked_at_tokens, 0);
    EXPECT_EQ(first_row_, 0);
    EXPECT_EQ(num_rows_, std::ssize(tokens_));
    expect_sums(timings);
  }
}

TEST_F(PromptRunning, TooLittleMemoryIsSaid) {
  KvCache small(*device_, layout_, 2 * layout_.block_bytes());
  PromptRunner runner(ops_, small, *store_);
  auto refusal = [](auto run) -> std::string {
    try {
      run();
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.code(), ErrorCode::kExhausted);
      return failure.what();
    }
    return "";
  };
  BlockTable table;
  auto ignore = [](int32_t, TensorView) {};
  EXPECT_THAT(
      refusal([&] { runner.partial_prefill(tokens_, plan(ReusePlan::full(4)), table, ignore); }),
      HasSubstr("prompt of 212 tokens: K/V memory has room for 128"));
  EXPECT_THAT(refusal([&] { runner.ensure_cached(*models_.base(), tokens_, {}); }),
              HasSubstr("context of 192 tokens does not fit"));
  EXPECT_EQ(
      refusal([&] { runner.ensure_cached(*models_.base(), std::span(tokens_).first(128), {}); }),
      "");
  std::vector<int32_t> two_blocks(tokens_.begin(), tokens_.begin() + 127);
  EXPECT_EQ(refusal([&] {
              runner.partial_prefill(two_blocks, plan(ReusePlan::full(4)), table, ignore);
              runner.decode(*models_.base(), 1, 127, table);
            }),
            "");
  EXPECT_THAT(refusal([&] { runner.decode(*models_.base(), 1, 128, table); }),
              HasSubstr("K/V memory is full at 128 tokens"));
}

TEST_F(PromptRunning, LogitsThatAreNotFiniteAreRefused) {
  Tensor logits(*device_, DType::kF32, 2, 4);
  std::vector<float> values = {0, 3, 1, 2, 5, 1, 1, 1};
  device_->to_device(logits.view().data, values.data(), values.size() * sizeof(float));
  std::vector<int32_t> best(2);
  greedy_tokens(ops_, logits.view(), best);
  EXPECT_EQ(best, (std::vector<int32_t>{1, 0}));
  values[6] = std::numeric_limits<float>::quiet_NaN();
  device_->to_device(logits.view().data, values.data(), values.size() * sizeof(float));
  EXPECT_THROW(greedy_tokens(ops_, logits.view(), best), Failure);
}

std::string why_unused_of(const PlanBooks& books, const ModelFamily& models) {
  std::vector<std::string> reasons = books.unused(models);
  EXPECT_LE(reasons.size(), 1u);
  return reasons.empty() ? "" : reasons[0];
}

TEST_F(PromptRunning, BooksThatAreNotUsedSayWhy) {
  FamilyFile file = models_.file();
  PlanBook book;
  book.sender = "alpha";
  book.sender_model = models_.get("alpha")->model_digest;
  book.sender_adapter = models_.get("alpha")->adapter_digest;
  book.receiver = "beta";
  book.receiver_model = models_.get("beta")->model_digest;
  book.receiver_adapter = models_.get("beta")->adapter_digest;
  book.num_layers = 4;
  save_plan_book(folder_.path() / "book.json", book);
  file.plan_books = {folder_.path() / "book.json"};
  PlanBooks books(ops_, models_.config(), file);
  EXPECT_EQ(why_unused_of(books, models_), "");
  auto loaded = [&](const std::vector<std::string>& only) {
    return ModelFamily(ops_, models_.file(), {.precision = Precision::kExact}, only);
  };
  EXPECT_THAT(why_unused_of(books, loaded({"base", "beta"})),
              HasSubstr("book.json: \"alpha\" is not loaded"));
  EXPECT_THAT(why_unused_of(books, loaded({"base", "alpha"})),
              HasSubstr("book.json: \"beta\" is not loaded"));
  write_tiny_adapter(folder_.path() / "other", {}, {.seed = 999});
  models_.add_adapter("beta", folder_.path() / "other");
  EXPECT_THAT(why_unused_of(books, models_),
              HasSubstr("made for other weights of \"beta\"; profile the pair again"));
}

TEST_F(PromptRunning, AnActivatedAdapterTakesAllOfItsBase) {
  write_tiny_adapter(folder_.path() / "hot", {}, {.seed = 7, .invocation = {1, 2}});
  models_.add_adapter("hot", folder_.path() / "hot");
  PlanBooks books(ops_, models_.config(), models_.file());
  auto shown = [&](const std::string& plan, const std::string& sender,
                   const std::string& receiver) -> std::string {
    try {
      return books.choose(parse_plan_request(plan, 4), *models_.get(sender), *models_.get(receiver))
          .shown;
    } catch (const Failure& failure) {
      return failure.what();
    }
  };
  EXPECT_EQ(shown("auto", "base", "hot"), "reuse");
  EXPECT_EQ(shown("reuse", "base", "hot"), "reuse");
  EXPECT_EQ(shown("full", "base", "hot"), "full");
  EXPECT_THAT(shown("0,1,3", "base", "hot"), HasSubstr("plan \"0,1,3\": \"hot\" is an activated"));
  EXPECT_THAT(shown("reuse", "alpha", "hot"), HasSubstr("takes caches of \"base\" only"));
  EXPECT_THAT(shown("reuse", "hot", "alpha"), HasSubstr("those of \"base\""));
  EXPECT_EQ(shown("full", "hot", "alpha"), "full");
  EXPECT_EQ(shown("auto", "base", "alpha"), "full") << "no book";
}

}  // namespace
}  // namespace droidspeak
