// Caches that do not hold what they promised, that lack what a new plan book wants, or that belong
// to other weights by now.
#include <algorithm>
#include <fstream>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/engine_fixture.h"

namespace droidspeak {
namespace {

using Mode = SharingRequest::Mode;

std::vector<std::filesystem::path> block_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.file_size() >= 4096) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

// Every entry of the block behind the header.
void damage(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  auto size = static_cast<std::streamoff>(std::filesystem::file_size(path));
  for (std::streamoff place = 8192; place + 64 < size; place += 4096) {
    file.seekp(place);
    file.write(std::string(64, 'x').data(), 64);
  }
}

GenerationRequest named(const std::string& model,
                        const std::vector<int32_t>& prompt,
                        const std::string& sender,
                        const std::string& plan) {
  return {.model = model,
          .prompt = prompt,
          .max_tokens = 12,
          .sharing = {Mode::kExplicit, sender, plan}};
}

// Four blocks of a prompt on disk, then one of them damaged.
class DamagedBlock : public testing::Test {
 protected:
  DamagedBlock() {
    family_.add_book("base", "alpha", {{{0, 0, 0}, 0.5}, {{0, 2, 3}, 0.995}});
    options_.store.disk_folder = disk_.path() / "whole";
    {
      Engine engine(family_.ops(), family_.file(), options_);
      generate(engine, {.model = "base", .prompt = prompt_, .max_tokens = 1});
    }
  }

  // Runs the request on the cache with one block damaged, for each of them.
  std::vector<Outcome> run_each(const GenerationRequest& request) {
    std::vector<Outcome> outcomes;
    size_t count = block_files(disk_.path() / "whole").size();
    EXPECT_EQ(count, 4u);
    for (size_t i = 0; i < count; ++i) {
      EngineOptions options = options_;
      options.store.disk_folder = disk_.path() / ("damaged" + std::to_string(i));
      std::filesystem::copy(disk_.path() / "whole", options.store.disk_folder,
                            std::filesystem::copy_options::recursive);
      damage(block_files(options.store.disk_folder)[i]);
      {
        Engine engine(family_.ops(), family_.file(), options);
        outcomes.push_back(generate(engine, request));
        EXPECT_NE(outcomes.back().report.fallback, "");
        EXPECT_EQ(engine.metrics().fallbacks["load_failed"], 1u);
      }
      std::filesystem::remove_all(options.store.disk_folder);
    }
    std::ranges::sort(outcomes, {}, [](const Outcome& o) { return o.report.cached_tokens; });
    return outcomes;
  }

  TinyFamily family_;
  TemporaryFolder disk_;
  EngineOptions options_ = tiny_options();
  std::vector<int32_t> prompt_ = random_prompt(1, 266);
};

TEST_F(DamagedBlock, LeavesTheBlocksInFrontOfItToTheirOwner) {
  std::vector<int32_t> expected = family_.reference_greedy("base", prompt_, 12);
  std::vector<Outcome> outcomes = run_each({.model = "base", .prompt = prompt_, .max_tokens = 12});
  for (size_t i = 0; i < outcomes.size(); ++i) {
    EXPECT_EQ(outcomes[i].tokens, expected);
    EXPECT_EQ(outcomes[i].report.cached_tokens, static_cast<int32_t>(i) * kBlockTokens);
  }
}

TEST_F(DamagedBlock, LeavesTheBlocksInFrontOfItToReceivers) {
  for (const char* plan : {"reuse", "0,2,3", "reuse+50%"}) {
    std::vector<Outcome> outcomes = run_each(named("alpha", prompt_, "base", plan));
    for (size_t i = 0; i < outcomes.size(); ++i) {
      const PrefillReport& report = outcomes[i].report;
      EXPECT_EQ(report.reused_tokens, static_cast<int32_t>(i) * kBlockTokens);
      EXPECT_EQ(report.plan, i == 0 ? "full" : plan);
      // The same with a sender that has read no more than that.
      Engine fresh(family_.ops(), family_.file(), tiny_options());
      auto begin = std::span(prompt_).first(i * kBlockTokens + 1);
      generate(fresh, {.model = "base", .prompt = {begin.begin(), begin.end()}, .max_tokens = 1});
      EXPECT_EQ(outcomes[i].tokens, generate(fresh, named("alpha", prompt_, "base", plan)).tokens);
    }
  }
}

// A cache that was made before the book that wants E at layer 2.
class CacheWithoutInputs : public testing::Test {
 protected:
  CacheWithoutInputs() {
    options_.store.disk_folder = disk_.path();
    {
      Engine engine(family_.ops(), family_.file(), options_);
      generate(engine, read());
    }
    family_.add_book("base", "alpha", {{{0, 2, 3}, 0.995}});
  }

  GenerationRequest read() const { return {.model = "base", .prompt = prompt_, .max_tokens = 4}; }

  TinyFamily family_;
  TemporaryFolder disk_;
  EngineOptions options_ = tiny_options();
  std::vector<int32_t> prompt_ = random_prompt(1, 266);
};

TEST_F(CacheWithoutInputs, GetsThemWhenItsOwnerReadsTheContextNext) {
  std::vector<int32_t> expected = family_.reference_greedy("base", prompt_, 4);
  Engine engine(family_.ops(), family_.file(), options_);
  EXPECT_EQ(generate(engine, named("alpha", prompt_, "base", "0,2,3")).report.reused_tokens, 0);
  Outcome refill = generate(engine, read());
  EXPECT_EQ(refill.report.cached_tokens, 0) << "computed again, for E";
  EXPECT_EQ(refill.tokens, expected);
  EXPECT_EQ(generate(engine, named("alpha", prompt_, "base", "0,2,3")).report.reused_tokens, 256);
  Outcome next = generate(engine, read());
  EXPECT_EQ(next.report.cached_tokens, 256);
  EXPECT_EQ(next.tokens, expected);
}

TEST_F(CacheWithoutInputs, ComputesOnlyTheBlocksThatLackThem) {
  Engine engine(family_.ops(), family_.file(), options_);
  auto head = std::span(prompt_).first(130);
  generate(engine, {.model = "base", .prompt = {head.begin(), head.end()}, .max_tokens = 1});
  EXPECT_EQ(generate(engine, read()).report.cached_tokens, 128);
  EXPECT_EQ(generate(engine, named("alpha", prompt_, "base", "0,2,3")).report.reused_tokens, 256);
}

TEST_F(CacheWithoutInputs, IsComputedAgainOnceEvenWhenTheyCannotBeStored) {
  options_.store.host_bytes = 0;
  options_.store.write_queue_bytes = 1;
  Engine engine(family_.ops(), family_.file(), options_);
  EXPECT_EQ(generate(engine, read()).report.cached_tokens, 0);
  EXPECT_EQ(generate(engine, read()).report.cached_tokens, 256);
}

TEST_F(CacheWithoutInputs, IsLoadedAsItIsWhenThereIsNoTimeToCompute) {
  Engine engine(family_.ops(), family_.file(), options_);
  GenerationRequest hurried = read();
  hurried.ttft_slo_ms = 1e-3;
  EXPECT_EQ(generate(engine, hurried).report.cached_tokens, 256);
  EXPECT_EQ(generate(engine, read()).report.cached_tokens, 0) << "the time comes later";
}

TEST(OwnCache, StaysWhenTheSameAdapterIsLoadedAgain) {
  TinyFamily family;
  Engine engine(family.ops(), family.file(), tiny_options());
  GenerationRequest request{.model = "alpha", .prompt = random_prompt(1, 266), .max_tokens = 4};
  std::vector<int32_t> first = generate(engine, request).tokens;
  ASSERT_TRUE(engine.load_adapter("alpha", family.folder() / "adapters/alpha"));
  Outcome again = generate(engine, request);
  EXPECT_EQ(again.report.cached_tokens, 256);
  EXPECT_EQ(again.tokens, first);
}

// "alpha" stands for other weights when the request's turn comes; their cache is there under
// another name.
TEST(OwnCache, IsThatOfTheWeightsNotOfTheName) {
  TinyFamily family;
  write_tiny_adapter(family.folder() / "other", {}, {.seed = 999});
  EngineOptions options = tiny_options();
  options.max_batch_sequences = 1;
  Engine engine(family.ops(), family.file(), options);
  std::vector<int32_t> prompt = random_prompt(1, 266);
  std::vector<int32_t> expected = family.reference_greedy("alpha", prompt, 12);
  ASSERT_TRUE(engine.load_adapter("gamma", family.folder() / "other"));
  generate(engine, {.model = "gamma", .prompt = prompt, .max_tokens = 1});
  auto running = engine.submit({.model = "base", .prompt = {1, 2, 3}, .max_tokens = 3000});
  ASSERT_TRUE((*running)->next(std::chrono::seconds(60)));
  auto waiting = engine.submit(named("alpha", prompt, "alpha", "reuse"));
  ASSERT_TRUE(waiting);
  ASSERT_TRUE(engine.load_adapter("alpha", family.folder() / "other"));
  (*running)->cancel();
  Outcome outcome = collect(**waiting);
  EXPECT_EQ(outcome.report.sender, "");
  EXPECT_EQ(outcome.tokens, expected);
  EXPECT_EQ(generate(engine, named("alpha", prompt, "alpha", "reuse")).report.reused_tokens, 256)
      << "whose weights are the same may take it";
  EXPECT_EQ(generate(engine, named("alpha", prompt, "gamma", "reuse")).report.reused_tokens, 256);
}

}  // namespace
}  // namespace droidspeak
