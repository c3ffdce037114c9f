// Shared caches that come from disk, through the whole engine.
#include <fstream>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/shared_family.h"
#include "store/tiers/table_folder.h"

namespace droidspeak {
namespace {

void damage_every_file(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file() || entry.file_size() < 4096) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(entry.file_size() / 2));
    file.write(std::string(1024, 'x').data(), 1024);
  }
}

TEST(Sharing, DamagedCacheMeansFullPrefillWithTheRightAnswer) {
  SharedFamily family;
  TemporaryFolder disk;
  EngineOptions options = tiny_options();
  options.store.disk_folder = disk.path();
  std::vector<int32_t> prompt = question(1, 256, 10);
  {
    Engine engine(family.ops(), family.file(), options);
    generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 1});
  }
  damage_every_file(disk.path());
  Engine engine(family.ops(), family.file(), options);
  Outcome outcome = generate(engine, by_name("alpha", prompt, "reuse"));
  EXPECT_EQ(outcome.tokens, family.reference_greedy("alpha", prompt, 12));
  EXPECT_EQ(outcome.report.plan, "full");
  EXPECT_NE(outcome.report.fallback, "");
}

// What the sequence shares on the device stays when the rest of it cannot be loaded.
TEST(Sharing, DamageBehindBlocksOnTheDeviceCostsTheRestOnly) {
  TinyFamily family;
  TemporaryFolder disk;
  EngineOptions options = tiny_options();
  options.store.disk_folder = disk.path();
  std::vector<int32_t> prompt = random_prompt(1, 500);
  GenerationRequest whole{.model = "alpha", .prompt = prompt, .max_tokens = 12};
  {
    Engine engine(family.ops(), family.file(), options);
    generate(engine, whole);
  }
  damage_every_file(disk.path());
  Engine engine(family.ops(), family.file(), options);
  auto front = [&](int32_t tokens) {
    return std::vector<int32_t>(prompt.begin(), prompt.begin() + tokens);
  };
  GenerationRequest part{.model = "alpha", .prompt = front(200), .max_tokens = 1};
  EXPECT_EQ(generate(engine, part).report.cached_tokens, 0);
  Outcome outcome = generate(engine, whole);
  EXPECT_EQ(outcome.report.cached_tokens, 192);
  EXPECT_NE(outcome.report.fallback, "");
  EXPECT_EQ(outcome.tokens, family.reference_greedy("alpha", prompt, 12));
  EXPECT_EQ(generate(engine, whole).report.cached_tokens, 448) << "what was computed is kept";
  EXPECT_EQ(engine.metrics().fallbacks["disk_avoided"], 0u) << "damage is no stall";
}

TEST(Sharing, DiskCacheSurvivesARestart) {
  SharedFamily family;
  TemporaryFolder disk;
  EngineOptions options = tiny_options();
  options.store.disk_folder = disk.path();
  std::vector<int32_t> prompt = question(1, 256, 10);
  std::vector<int32_t> before;
  {
    Engine engine(family.ops(), family.file(), options);
    generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 1});
    before = generate(engine, by_name("alpha", prompt, "0,2,3")).tokens;
  }
  Engine engine(family.ops(), family.file(), options);
  Outcome outcome = generate(engine, by_name("alpha", prompt, "0,2,3"));
  EXPECT_EQ(outcome.report.sender, "base");
  EXPECT_EQ(outcome.tokens, before);
  EXPECT_EQ(engine.metrics().hits_by_tier["disk"], 1u);
}

TEST(Sharing, DiskCacheInEightBitsIsSmallerAndNearlyAsGood) {
  SharedFamily family;
  std::vector<int32_t> prompt = question(1, 256, 10);
  GenerationRequest request = by_name("alpha", prompt, "reuse");
  request.max_tokens = 1;
  request.num_top_logprobs = 0;
  std::map<DiskFormat, float> logprobs;
  std::map<DiskFormat, uint64_t> bytes;
  for (auto format : {DiskFormat::kRaw, DiskFormat::kInt8}) {
    TemporaryFolder disk;
    EngineOptions options = tiny_options();
    options.store.disk_folder = disk.path();
    options.store.disk_format = format;
    {
      Engine engine(family.ops(), family.file(), options);
      generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 1});
    }
    Engine engine(family.ops(), family.file(), options);
    bytes[format] = engine.metrics().store.of(Tier::kDisk).bytes;
    Outcome outcome = generate(engine, request);
    EXPECT_EQ(outcome.report.reused_tokens, 256);
    EXPECT_EQ(engine.metrics().hits_by_tier["disk"], 1u);
    ASSERT_EQ(outcome.sampled.size(), 1u);
    logprobs[format] = outcome.sampled[0].logprob;
  }
  using Format = DiskFormat;
  EXPECT_LT(bytes[Format::kInt8], bytes[Format::kRaw] * 2 / 3);
  EXPECT_NEAR(logprobs[Format::kInt8], logprobs[Format::kRaw], 0.1);
  EXPECT_NE(logprobs[Format::kInt8], logprobs[Format::kRaw]) << "it went through eight bits";
}

// Once its tables are learned, of the first contexts.
TEST(Sharing, CodedDiskCacheIsFoundByTheNextEngineOfTheFamily) {
  TinyFamily family;
  TemporaryFolder disk;
  EngineOptions options = tiny_options();
  options.store.disk_folder = disk.path();
  options.store.disk_format = DiskFormat::kCoded;
  auto ask = [&](Engine& engine, uint32_t seed) {
    return generate(engine, {.model = "base", .prompt = random_prompt(seed, 522), .max_tokens = 1});
  };
  {
    Engine engine(family.ops(), family.file(), options);
    for (uint32_t seed : {1, 2, 3}) ask(engine, seed);
  }
  const std::string base = family.models().base()->model_digest.hex().substr(0, 8);
  size_t num_tables = 0;
  for (const auto& file : std::filesystem::directory_iterator(tables_folder(disk.path())))
    num_tables += file.path().filename().string().find(base) != std::string::npos ? 1 : 0;
  EXPECT_GT(num_tables, 0u) << "they are the family's";
  Engine engine(family.ops(), family.file(), options);
  EXPECT_GT(engine.metrics().store.of(Tier::kDisk).entries, 0u);
  Outcome found = ask(engine, 3);
  EXPECT_EQ(found.report.cached_tokens, 512);
  EXPECT_EQ(found.report.tier, "disk");
  EXPECT_EQ(found.report.fallback, "");
}

}  // namespace
}  // namespace droidspeak
