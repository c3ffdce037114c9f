// What becomes of an adapter's caches when it goes.
#include <filesystem>
#include <set>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/engine_fixture.h"
#include "sharing/context_writer.h"
#include "store/tiers/cache_folder.h"

namespace droidspeak {
namespace {

constexpr int32_t kErasedContext = 256;

class Erasure : public testing::Test {
 protected:
  Erasure() {
    for (const char* sender : {"base", "alpha"})
      family_.add_book(sender, "beta", {{{0, 2, 3}, 0.999}});
    options_.store.disk_folder = family_.folder() / "cache";
  }

  std::unique_ptr<Engine> start() {
    return std::make_unique<Engine>(family_.ops(), family_.file(), options_);
  }

  // All of it is stored before the second token is there.
  Outcome ask(Engine& engine, const std::string& model, const std::string& sender = "") {
    GenerationRequest request{.model = model, .prompt = prompt_, .max_tokens = 6};
    if (!sender.empty()) request.sharing = {SharingRequest::Mode::kExplicit, sender, "0,2,3"};
    Outcome outcome = generate(engine, request);
    EXPECT_FALSE(outcome.error.has_value());
    return outcome;
  }

  void read_with_all(Engine& engine) {
    for (const char* model : {"base", "alpha"}) ask(engine, model);
    EXPECT_EQ(ask(engine, "beta", "alpha").report.sender, "alpha");
  }

  Digest owner(const std::string& model) { return cache_owner(*family_.models().get(model)); }

  // Number of block files of a model.
  size_t num_files(const std::string& model) {
    FileSystem files;
    size_t count = 0;
    for (FoundBlockFile& found : find_block_files(files, options_.store.disk_folder)) {
      EXPECT_TRUE(found.header);
      count += found.header && found.header->owner == owner(model) ? 1 : 0;
    }
    return count;
  }

  TinyFamily family_;
  EngineOptions options_ = tiny_options();
  std::vector<int32_t> prompt_ = random_prompt(1, kErasedContext + 10);
};

TEST_F(Erasure, OwnersAreVariants) {
  std::set<Digest> owners = {owner("base"), owner("alpha"), owner("beta"), Digest{}};
  EXPECT_EQ(owners.size(), 4u);
  Variant other = *family_.models().get("alpha");
  other.model_digest = sha256({});
  EXPECT_FALSE(owners.contains(cache_owner(other)));
}

TEST_F(Erasure, UnloadingRemovesTheCachesOfEarlierProcesses) {
  read_with_all(*start());
  size_t blocks = kErasedContext / kBlockTokens;
  EXPECT_EQ(num_files("alpha"), blocks);
  EXPECT_EQ(num_files("base"), blocks);
  EXPECT_EQ(num_files("beta"), blocks) << "mixed caches are the receiver's";
  ASSERT_TRUE(start()->unload_adapter("alpha"));
  EXPECT_EQ(num_files("alpha"), 0u);
  EXPECT_EQ(num_files("base"), blocks);
  EXPECT_EQ(num_files("beta"), blocks);
  ASSERT_TRUE(start()->unload_adapter("beta"));
  EXPECT_EQ(num_files("beta"), 0u);
  EXPECT_EQ(num_files("base"), blocks);
}

TEST_F(Erasure, ReplacingRemovesTheCachesOfEarlierProcesses) {
  read_with_all(*start());
  write_tiny_adapter(family_.folder() / "other", {}, {.seed = 999});
  {
    auto engine = start();
    ASSERT_TRUE(engine->load_adapter("alpha", family_.folder() / "adapters/alpha"));
    EXPECT_EQ(ask(*engine, "alpha").report.cached_tokens, kErasedContext)
        << "the same adapter again";
    ASSERT_TRUE(engine->load_adapter("alpha", family_.folder() / "other"));
    EXPECT_EQ(ask(*engine, "alpha").report.cached_tokens, 0);
  }
  EXPECT_EQ(num_files("alpha"), 0u);
  EXPECT_EQ(num_files("base"), static_cast<size_t>(kErasedContext / kBlockTokens));
}

// A mixed cache holds the recomputed layers only; the others lie under the sender's keys.
TEST_F(Erasure, AMixedCacheWithoutItsSendersLayersIsAMiss) {
  std::vector<int32_t> expected = family_.reference_greedy("beta", prompt_, 6);
  for (bool is_restarted : {false, true}) {
    std::filesystem::remove_all(options_.store.disk_folder);
    auto engine = start();
    read_with_all(*engine);
    EXPECT_EQ(ask(*engine, "beta", "alpha").report.sender, "alpha");
    ASSERT_TRUE(engine->unload_adapter("alpha"));
    if (is_restarted) {
      engine.reset();
      engine = start();
    } else {
      ASSERT_TRUE(engine->load_adapter("alpha", family_.folder() / "adapters/alpha"));
    }
    Outcome outcome = ask(*engine, "beta", "alpha");
    EXPECT_EQ(outcome.report.sender, "");
    EXPECT_EQ(outcome.report.cached_tokens, 0);
    EXPECT_EQ(outcome.tokens, expected);
    EXPECT_EQ(engine->metrics().store.damaged, 0u);
  }
}

}  // namespace
}  // namespace droidspeak
