// Adapters that come, change and go while others are served.
#include <fstream>
#include <future>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/mutex.h"
#include "base/test_wait.h"
#include "engine/adapter_loader.h"
#include "engine/engine.h"
#include "engine/engine_fixture.h"
#include "engine/slow_ops.h"

namespace droidspeak {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

// Reads of adapters wait in front of it.
class Gate {
 public:
  void pass() {
    MutexLock lock(mutex_);
    ++num_waiting_;
    changed_.notify_all();
    while (!is_open_) changed_.wait(mutex_);
    --num_waiting_;
  }

  void open() {
    MutexLock lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }

  void wait_for(int num_readers) {
    MutexLock lock(mutex_);
    while (num_waiting_ < num_readers) changed_.wait(mutex_);
  }

 private:
  Mutex mutex_;
  Condition changed_;
  bool is_open_ GUARDED_BY(mutex_) = false;
  int num_waiting_ GUARDED_BY(mutex_) = 0;
};

class EngineAdapters : public testing::Test {
 protected:
  EngineAdapters() { write_tiny_adapter(other(), {}, {.seed = 999}); }

  std::filesystem::path other() const { return family_.folder() / "other"; }

  std::filesystem::path alpha() const { return family_.folder() / "adapters/alpha"; }

  EngineOptions gated_options() const {
    EngineOptions options = tiny_options();
    options.read_adapter = [gate = gate_](const auto& folder, const auto& base, auto precision) {
      gate->pass();
      return AdapterFiles(folder, base, precision);
    };
    return options;
  }

  // What the adapter of a folder answers.
  std::vector<int32_t> reference(const std::filesystem::path& folder,
                                 const std::vector<int32_t>& prompt,
                                 int32_t count) {
    ModelFamily models(family_.ops(), family_.file(), TinyFamily::exact(), {"base"});
    models.add_adapter("it", folder);
    return family_.reference_greedy(*models.get("it"), prompt, count);
  }

  TinyFamily family_;
  std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  std::vector<int32_t> prompt_ = random_prompt(4, 200);
};

TEST_F(EngineAdapters, OthersAreServedWhileOneIsRead) {
  std::vector<int32_t> base_answer = family_.reference_greedy("base", prompt_, 20);
  std::vector<int32_t> other_answer = reference(other(), prompt_, 20);
  Engine engine(family_.ops(), family_.file(), gated_options());
  auto loaded =
      std::async(std::launch::async, [&] { return engine.load_adapter("gamma", other()); });
  gate_->wait_for(1);
  EXPECT_EQ(generate(engine, {.model = "base", .prompt = prompt_, .max_tokens = 20}).tokens,
            base_answer);
  ASSERT_TRUE(engine.unload_adapter("beta"));
  EXPECT_EQ(engine.submit({.model = "gamma", .prompt = prompt_}).error().code,
            ErrorCode::kNotFound);
  gate_->open();
  ASSERT_TRUE(loaded.get());
  EXPECT_EQ(generate(engine, {.model = "gamma", .prompt = prompt_, .max_tokens = 20}).tokens,
            other_answer);
}

TEST_F(EngineAdapters, OthersDecodeWhileOneIsPacked) {
  Engine engine(family_.ops(), family_.file(), tiny_options());
  auto stream = std::move(engine.submit({.model = "base", .prompt = {1, 2}, .max_tokens = 3000}))
                    .take_or_throw();
  ASSERT_TRUE(stream->next(60s));
  ASSERT_TRUE(engine.load_adapter("gamma", other()));
  // One layer at a time: between two of them the engine has made a step, which made a token.
  size_t num_tokens = 0;
  while (stream->next(0ms)) ++num_tokens;
  EXPECT_GE(num_tokens, 3u);
  stream->cancel();
}

// As at the start: it was trained on other ids.
TEST_F(EngineAdapters, WithATokenizerOfOtherIdsAreRefused) {
  Engine engine(family_.ops(), family_.file(), tiny_options());
  const std::filesystem::path base = family_.file().base.path / "tokenizer.json";
  nlohmann::json json = nlohmann::json::parse(std::ifstream(base));
  json["added_tokens"].push_back({{"id", 500}, {"content", "[PAD]"}});
  std::ofstream(other() / "tokenizer.json") << json;
  EXPECT_TRUE(engine.load_adapter("gamma", other())) << "more tokens do no harm";
  std::swap(json["model"]["vocab"]["A"], json["model"]["vocab"]["B"]);
  std::ofstream(other() / "tokenizer.json") << json;
  const Result<void> loaded = engine.load_adapter("delta", other());
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(loaded.error().message.starts_with(
      other().string() + ": its tokenizer differs: vocabulary: token \"A\" is "))
      << loaded.error().message;
}

// A link that is turned to another version between the two.
TEST_F(EngineAdapters, AreReadWithTheTokenizerOfTheirOwnFolder) {
  nlohmann::json json =
      nlohmann::json::parse(std::ifstream(family_.file().base.path / "tokenizer.json"));
  const std::filesystem::path fits = family_.folder() / "fits";
  const std::filesystem::path differs = family_.folder() / "differs";
  for (const auto& folder : {fits, differs}) {
    std::filesystem::copy(other(), folder);
    std::ofstream(folder / "tokenizer.json") << json;
    std::swap(json["model"]["vocab"]["A"], json["model"]["vocab"]["B"]);
  }
  const std::filesystem::path link = family_.folder() / "link";
  auto lead_to = [link](const std::filesystem::path& folder) {
    std::filesystem::remove(link);
    std::filesystem::create_directory_symlink(folder, link);
  };
  std::filesystem::path next;
  EngineOptions options = tiny_options();
  options.read_adapter = [&](const auto& adapter, const auto& base, auto precision) {
    AdapterFiles files(adapter, base, precision);
    lead_to(next);
    return files;
  };
  Engine engine(family_.ops(), family_.file(), options);
  lead_to(differs);
  next = fits;
  EXPECT_FALSE(engine.load_adapter("gamma", link));
  EXPECT_TRUE(engine.load_adapter("gamma", link)) << "what it leads to now";
  next = differs;
  EXPECT_TRUE(engine.load_adapter("delta", link));
}

TEST_F(EngineAdapters, DrainingEndsALoadThatHangs) {
  auto engine = std::make_unique<Engine>(family_.ops(), family_.file(), gated_options());
  auto loaded =
      std::async(std::launch::async, [&] { return engine->load_adapter("gamma", other()); });
  gate_->wait_for(1);
  engine->drain(0ms);
  EXPECT_EQ(loaded.get().error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(engine->load_adapter("gamma", other()).error().code, ErrorCode::kUnavailable);
  engine.reset();
  gate_->open();  // the straggler returns when nothing of the engine is there any more
}

TEST_F(EngineAdapters, DestructionEndsALoadThatHangs) {
  auto engine = std::make_unique<Engine>(family_.ops(), family_.file(), gated_options());
  Engine& running = *engine;
  auto loaded =
      std::async(std::launch::async, [&] { return running.load_adapter("gamma", other()); });
  gate_->wait_for(1);
  engine.reset();
  EXPECT_EQ(loaded.get().error().code, ErrorCode::kUnavailable);
  gate_->open();
}

TEST_F(EngineAdapters, SoManyLoadsAtATime) {
  Engine engine(family_.ops(), family_.file(), gated_options());
  std::vector<std::future<Result<void>>> loads;
  for (int i = 0; i < AdapterLoader::kMaxLoads; ++i) {
    loads.push_back(std::async(std::launch::async, [&, i] {
      return engine.load_adapter("gamma" + std::to_string(i), other());
    }));
  }
  gate_->wait_for(AdapterLoader::kMaxLoads);
  EXPECT_EQ(engine.load_adapter("delta", other()).error().code, ErrorCode::kExhausted);
  gate_->open();
  for (auto& load : loads) EXPECT_TRUE(load.get());
  EXPECT_TRUE(engine.load_adapter("delta", other()));
}

TEST_F(EngineAdapters, SoManyAreLoaded) {
  EngineOptions options = tiny_options();
  options.max_adapters = 3;
  Engine engine(family_.ops(), family_.file(), options);
  ASSERT_TRUE(engine.load_adapter("gamma", other()));
  Result<void> refused = engine.load_adapter("delta", other());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message, HasSubstr("3 adapters are loaded and --max-adapters is 3"));
  EXPECT_TRUE(engine.load_adapter("gamma", alpha())) << "replacing takes no place";
  ASSERT_TRUE(engine.unload_adapter("beta"));
  EXPECT_TRUE(engine.load_adapter("delta", other()));
}

TEST_F(EngineAdapters, WhereNoneMayBeLoadedThoseThatAreThereCanBeReplaced) {
  EngineOptions options = tiny_options();
  options.max_adapters = 0;
  Engine engine(family_.ops(), family_.file(), options);
  EXPECT_FALSE(engine.load_adapter("gamma", other()));
  EXPECT_TRUE(engine.load_adapter("alpha", other()));
}

// What requests in flight hold is memory too, whether its name was replaced or unloaded.
TEST_F(EngineAdapters, ThoseThatRequestsStillUseCount) {
  EngineOptions options = tiny_options();
  options.max_adapters = 4;
  SlowOps slow(family_.ops());
  slow.pause = 20ms;
  Engine engine(slow, family_.file(), options);
  std::vector<std::shared_ptr<TokenStream>> streams;
  auto use = [&](const std::string& name) {
    auto stream = engine.submit({.model = name, .prompt = {1, 2}, .max_tokens = 3000});
    streams.push_back(std::move(stream).take_or_throw());
  };
  use("alpha");
  ASSERT_TRUE(engine.load_adapter("alpha", other()));
  use("alpha");
  ASSERT_TRUE(engine.unload_adapter("alpha"));
  ASSERT_TRUE(engine.load_adapter("alpha", other()));
  use("alpha");
  use("beta");
  ASSERT_TRUE(engine.load_adapter("alpha", other()));
  use("alpha");
  ASSERT_TRUE(engine.load_adapter("alpha", other())) << "the last place";
  for (const char* name : {"beta", "gamma"}) {
    Result<void> loaded = engine.load_adapter(name, other());
    ASSERT_FALSE(loaded) << name;
    EXPECT_EQ(loaded.error().code, ErrorCode::kExhausted);
    EXPECT_THAT(loaded.error().message,
                HasSubstr("requests in flight use 4 adapters that were replaced or unloaded, and "
                          "--max-adapters is 4"));
  }
  for (auto& stream : streams) stream->cancel();
  wait_until([&] { return static_cast<bool>(engine.load_adapter("beta", other())); });
}

TEST_F(EngineAdapters, OfTwoLoadsOfOneNameOnlyOneIsNew) {
  Engine engine(family_.ops(), family_.file(), gated_options());
  std::vector<std::future<Result<void>>> loads;
  for (int i = 0; i < 2; ++i) {
    loads.push_back(std::async(std::launch::async, [&] {
      return engine.load_adapter("gamma", other(), IfTaken::kRefuse);
    }));
  }
  gate_->wait_for(2);
  gate_->open();
  int num_done = 0;
  for (auto& load : loads) num_done += load.get() ? 1 : 0;
  EXPECT_EQ(num_done, 1);
}

TEST_F(EngineAdapters, AWrongOneLeavesEverythingAsItWas) {
  Engine engine(family_.ops(), family_.file(), tiny_options());
  std::vector<int32_t> expected = family_.reference_greedy("alpha", prompt_, 8);
  auto answer = [&] {
    return generate(engine, {.model = "alpha", .prompt = prompt_, .max_tokens = 8}).tokens;
  };
  std::string config = read_file(other() / "adapter_config.json");
  for (const char* rank : {"0", "-1", "2", "1e9", "null"}) {
    std::string wrong = config;
    size_t begin = wrong.find("\"r\": ") + 5;
    write_file_atomically(other() / "adapter_config.json",
                          wrong.replace(begin, wrong.find(',', begin) - begin, rank));
    EXPECT_FALSE(engine.load_adapter("alpha", other())) << rank;
    EXPECT_EQ(answer(), expected) << rank;
  }
  write_file_atomically(other() / "adapter_config.json", config);
  std::filesystem::resize_file(other() / "adapter_model.safetensors", 1000);
  EXPECT_FALSE(engine.load_adapter("alpha", other()));
  EXPECT_EQ(answer(), expected);
  EXPECT_TRUE(engine.is_healthy());
}

TEST_F(EngineAdapters, AreReplacedUnderLoad) {
  constexpr int32_t kTokens = 24;
  const std::filesystem::path folders[] = {alpha(), other()};
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<int32_t>> answers[2];
  for (uint32_t seed = 0; seed < 16; ++seed) {
    prompts.push_back(random_prompt(seed, 40 + static_cast<int32_t>(seed)));
    for (size_t version = 0; version < 2; ++version)
      answers[version].push_back(reference(folders[version], prompts.back(), kTokens));
  }
  Engine engine(family_.ops(), family_.file(), tiny_options(256));
  for (size_t round = 0; round < 6; ++round) {
    size_t version = round % 2;
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (const auto& prompt : prompts) {
      auto stream = engine.submit({.model = "alpha", .prompt = prompt, .max_tokens = kTokens});
      ASSERT_TRUE(stream);
      streams.push_back(*stream);
    }
    ASSERT_TRUE(engine.load_adapter("alpha", folders[1 - version]));
    for (size_t i = 0; i < streams.size(); ++i)
      EXPECT_EQ(collect(*streams[i]).tokens, answers[version][i]) << "round " << round;
  }
}

// The name of a replaced adapter is not the adapter: a request that began with the first version
// never takes the second one's cache, though both go by one name.
TEST_F(EngineAdapters, AQueuedRequestNeverTakesTheNextVersionsCache) {
  std::vector<int32_t> expected = reference(alpha(), prompt_, 20);
  EngineOptions options = tiny_options();
  options.max_batch_sequences = 1;
  Engine engine(family_.ops(), family_.file(), options);
  ASSERT_TRUE(engine.load_adapter("gamma", other()));  // keeps the next version's caches
  generate(engine, {.model = "gamma", .prompt = prompt_, .max_tokens = 2});
  auto blocker = std::move(engine.submit({.model = "base", .prompt = {1, 2}, .max_tokens = 3000}))
                     .take_or_throw();
  ASSERT_TRUE(blocker->next(60s));
  auto queued =
      std::move(engine.submit({.model = "alpha",
                               .prompt = prompt_,
                               .max_tokens = 20,
                               .sharing = {SharingRequest::Mode::kExplicit, "alpha", "reuse"}}))
          .take_or_throw();
  ASSERT_TRUE(engine.load_adapter("alpha", other()));
  blocker->cancel();
  Outcome outcome = collect(*queued);
  EXPECT_EQ(outcome.tokens, expected);
  EXPECT_EQ(outcome.report.reused_tokens, 0);
}

TEST_F(EngineAdapters, WhatARequestMeantAnswersAfterItsNameHasGone) {
  std::vector<int32_t> expected = reference(alpha(), prompt_, 12);
  Engine engine(family_.ops(), family_.file(), tiny_options());
  std::shared_ptr<const Variant> before = engine.variants().at(1);
  ASSERT_EQ(before->name, "alpha");
  auto answer = [&] {
    return generate(engine, {.model = "alpha",
                             .variant = before,
                             .prompt = prompt_,
                             .max_tokens = 12,
                             .sharing = {SharingRequest::Mode::kExplicit, "alpha", "auto", before}})
        .tokens;
  };
  ASSERT_TRUE(engine.load_adapter("alpha", other()));
  EXPECT_EQ(answer(), expected);
  ASSERT_TRUE(engine.unload_adapter("alpha"));
  EXPECT_EQ(answer(), expected);
}

}  // namespace
}  // namespace droidspeak
