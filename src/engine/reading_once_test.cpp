// Who waits for whom: one thing at a time is changed of a pair of which one waits for the other.
#include "engine/reading_once.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "engine/engine_fixture.h"
#include "store/test_entries.h"

namespace droidspeak {
namespace {

using std::chrono::hours;
using Mode = SharingRequest::Mode;

constexpr size_t kBlocks = 5;  // that can be shared of a prompt

class Waiting : public testing::Test {
 protected:
  explicit Waiting(const ReusePlan& plan = {0, 1, 3}) {
    family_.add_book("base", "alpha", {{plan, 0.995}});
    books_.emplace(family_.ops(), family_.models().config(), family_.file());
    options_.layout = family_.models().config().kv_layout(DType::kF32);
    chooser_.emplace(family_.models(), *books_, store_, pool_, costs_, options_);
  }

  static std::vector<int32_t> prompt() { return random_prompt(1, kBlocks * kBlockTokens + 1); }

  // The prompt with another token in a block.
  static std::vector<int32_t> other_in(size_t block) {
    std::vector<int32_t> tokens = prompt();
    tokens[block * kBlockTokens + 3] ^= 1;
    return tokens;
  }

  std::unique_ptr<Sequence> make(const std::string& model,
                                 const std::vector<int32_t>& tokens = prompt(),
                                 const std::string& salt = "") {
    GenerationRequest request;
    request.model = model;
    request.prompt = tokens;
    request.max_tokens = 1;
    request.cache_salt = salt;
    auto made = std::make_unique<Sequence>(
        SequenceOptions{.request = std::move(request),
                        .variant = family_.models().get(model),
                        .vocab_size = 320,
                        .max_tokens = static_cast<int32_t>(tokens.size()) + 1});
    made->id = ++last_id_;
    made->exact_keys = chooser_->exact_keys(*made, *made->variant);
    made->submitted = made->admitted = std::chrono::steady_clock::now();
    return made;
  }

  // One that is storing what it reads.
  std::unique_ptr<Sequence> make_reader(const std::string& model,
                                        const std::vector<int32_t>& tokens = prompt(),
                                        const std::string& salt = "") {
    auto reader = make(model, tokens, salt);
    reader->choice = chooser_->choose(*reader, 0);
    reader->writer = std::make_unique<ContextWriter>(
        ContextWriter::Parts{family_.ops(), kv_, store_, write_back_, {}}, std::vector<int32_t>{});
    return reader;
  }

  // base has read so many blocks of a prompt, with E.
  void store_blocks(const std::vector<int32_t>& tokens, size_t count = kBlocks) {
    auto any = make("base", tokens);
    std::vector<std::byte> layer(options_.layout.layer_bytes());
    std::vector<std::byte> rows(kBlockTokens * sizeof(float) *
                                static_cast<size_t>(family_.models().config().d_model));
    for (size_t i = 0; i < count; ++i) {
      std::vector<EntryBytes> entries{{input(1), rows}};
      for (int32_t l = 0; l < options_.layout.num_layers; ++l) entries.push_back({kv(l), layer});
      ASSERT_TRUE(put_entries(store_, {.key = any->exact_keys.at(i)}, entries));
    }
  }

  bool waits_for_running(Sequence& sequence, std::unique_ptr<Sequence>& other) {
    return once().should_wait(sequence, std::span(&other, 1), {}, 0);
  }

  bool waits_for_leaving(Sequence& sequence, std::unique_ptr<Sequence>& other) {
    return once().should_wait(sequence, {}, std::span(&other, 1), 0);
  }

  ReadingOnce once() const { return {*books_, *chooser_, sharing_}; }

  TinyFamily family_;
  std::optional<PlanBooks> books_;
  SteadyClock clock_;
  CacheStore store_{{.host_bytes = uint64_t{64} << 20}, clock_};
  BlockPool pool_{8};
  KvCache kv_{family_.ops().device(), family_.models().config().kv_layout(DType::kF32),
              family_.models().config().kv_layout(DType::kF32).block_bytes()};
  WriteBack write_back_{family_.ops().device()};
  // Computing is slow and loading is not.
  CostModel costs_{{.token_seconds = 1e-3, .bandwidths = {1e10, 5e8, 1e9, 1e8}}, 4};
  ChooserOptions options_;
  std::optional<PrefillChooser> chooser_;
  SharingMode sharing_ = SharingMode::kOn;
  uint64_t last_id_ = 0;
};

// Of one variant, computed and not stored yet.
using WaitingForItself = Waiting;

TEST_F(WaitingForItself, IsForThePromptThatIsBeingRead) {
  auto reader = make_reader("base");
  ASSERT_EQ(reader->choice.source(), PrefillChoice::Source::kCompute);
  EXPECT_TRUE(waits_for_running(*make("base"), reader));
  EXPECT_TRUE(waits_for_leaving(*make("base"), reader));
  EXPECT_FALSE(once().should_wait(*make("base"), {}, {}, 0));
  EXPECT_FALSE(waits_for_running(*make("base", other_in(0)), reader));
  EXPECT_FALSE(waits_for_running(*make("base", prompt(), "salt"), reader));
  EXPECT_FALSE(waits_for_running(*make("beta"), reader));
}

TEST_F(WaitingForItself, IsForWhatIsNotStoredYet) {
  auto reader = make_reader("base");
  reader->num_stored_blocks = kBlocks - 1;
  EXPECT_TRUE(waits_for_running(*make("base"), reader)) << "one more block";
  reader->num_stored_blocks = kBlocks;
  EXPECT_FALSE(waits_for_running(*make("base"), reader));
  for (int32_t stored = 0; stored < static_cast<int32_t>(kBlocks); ++stored) {
    reader->num_stored_blocks = stored;
    EXPECT_EQ(waits_for_running(*make("base", other_in(2)), reader), stored < 2) << stored;
  }
}

TEST_F(WaitingForItself, EndsWithTheShorterPrompt) {
  auto reader = make_reader("base", random_prompt(1, 2 * kBlockTokens));
  EXPECT_EQ(reader->exact_keys.size(), 2u);
  reader->num_stored_blocks = 1;
  EXPECT_TRUE(waits_for_running(*make("base"), reader));
  reader->num_stored_blocks = 2;
  EXPECT_FALSE(waits_for_running(*make("base"), reader));
  reader = make_reader("base");
  auto block_of = [&](int32_t num_tokens) { return make("base", random_prompt(1, num_tokens)); };
  EXPECT_FALSE(waits_for_running(*block_of(kBlockTokens), reader)) << "its last token is computed";
  EXPECT_TRUE(waits_for_running(*block_of(kBlockTokens + 1), reader));
  reader->num_stored_blocks = 1;
  EXPECT_FALSE(waits_for_running(*block_of(2 * kBlockTokens), reader));
  EXPECT_TRUE(waits_for_running(*block_of(2 * kBlockTokens + 1), reader));
}

TEST_F(WaitingForItself, IsOfNoUseWhenNothingWillBeFound) {
  auto reader = make_reader("base");
  reader->choice.refills_inputs = true;
  EXPECT_FALSE(waits_for_running(*make("base"), reader)) << "the blocks are there already";
  reader->choice.refills_inputs = false;
  reader->writer.reset();
  EXPECT_FALSE(waits_for_running(*make("base"), reader)) << "nothing is stored";
}

TEST_F(WaitingForItself, IsForThoseWhoWouldTakeIt) {
  auto reader = make_reader("base");
  auto scored = make("base");
  scored->request.wants_prompt_logprobs = true;
  EXPECT_FALSE(waits_for_running(*scored, reader));
  auto off = make("base");
  off->request.sharing.mode = Mode::kOff;
  EXPECT_TRUE(waits_for_running(*off, reader)) << "its own cache stays in use";
  EXPECT_TRUE(waits_for_leaving(*off, reader));
  for (const char* plan : {"auto", "full", "reuse", "0,1,3"}) {
    auto named = make("base");
    named->request.sharing = {Mode::kExplicit, "beta", plan};
    EXPECT_FALSE(waits_for_running(*named, reader)) << plan;
  }
}

// Of one variant that follows a plan.
class WaitingForAPlan : public Waiting {
 protected:
  explicit WaitingForAPlan(const ReusePlan& plan = {0, 1, 3}) : Waiting(plan) {
    store_blocks(prompt());
    reader_ = make_reader("alpha");
  }

  std::unique_ptr<Sequence> reader_;
};

TEST_F(WaitingForAPlan, IsForThoseWhoWouldFollowIt) {
  ASSERT_EQ(reader_->choice.source(), PrefillChoice::Source::kSender);
  auto sequence = make("alpha");
  EXPECT_TRUE(waits_for_running(*sequence, reader_));
  EXPECT_EQ(sequence->waits_for, reader_->id);
  sequence = make("alpha");
  sequence->request.min_quality = 1;
  EXPECT_FALSE(waits_for_running(*sequence, reader_)) << "it computes";
  EXPECT_EQ(sequence->waits_for, 0u);
  sequence = make("alpha");
  sequence->request.sharing.mode = Mode::kOff;
  EXPECT_FALSE(waits_for_running(*sequence, reader_));
  sequence = make("alpha");
  sequence->request.sharing = {Mode::kExplicit, "base", "0,1,3"};
  EXPECT_FALSE(waits_for_running(*sequence, reader_)) << "by name everybody does what was said";
  sequence->request.sharing.plan = "auto";
  EXPECT_TRUE(waits_for_running(*sequence, reader_));
}

TEST_F(WaitingForAPlan, IsForTheSamePlan) {
  reader_->choice.provenance += "another";
  EXPECT_FALSE(waits_for_running(*make("alpha"), reader_));
}

TEST_F(WaitingForAPlan, IsForTheSameBlocks) {
  store_blocks(other_in(kBlocks - 1));
  EXPECT_FALSE(waits_for_running(*make("alpha", other_in(kBlocks - 1)), reader_));
  reader_->choice.stored.cut(3);
  EXPECT_FALSE(waits_for_running(*make("alpha"), reader_)) << "it would take five";
}

// What is stored already is found, and how the rest will be named depends on all of it.
TEST_F(WaitingForAPlan, IsOverWhenSomethingOfItIsStored) {
  reader_->num_stored_blocks = 1;
  EXPECT_FALSE(waits_for_running(*make("alpha"), reader_));
}

TEST_F(WaitingForAPlan, IsNotForOneWhoHasItAlready) {
  reader_->choice.stored.own_keys = reader_->exact_keys;
  ASSERT_EQ(reader_->choice.source(), PrefillChoice::Source::kOwnMixed);
  EXPECT_FALSE(waits_for_running(*make("alpha"), reader_));
}

TEST_F(WaitingForAPlan, GoesOnOnceItHasBegun) {
  auto sequence = make("alpha");
  ASSERT_TRUE(waits_for_running(*sequence, reader_));
  sequence->request.min_quality = 1;
  EXPECT_TRUE(waits_for_running(*sequence, reader_));
  sequence->waits_for = reader_->id + 1;
  EXPECT_FALSE(waits_for_running(*sequence, reader_)) << "it waited for another";
}

TEST_F(WaitingForAPlan, IsForThoseWhoHaveTheTime) {
  reader_->choice.predicted_seconds = 1800;
  auto sequence = make("alpha");
  sequence->request.deadline = sequence->submitted + std::chrono::minutes(20);
  EXPECT_FALSE(waits_for_running(*sequence, reader_));
  sequence->request.deadline = sequence->submitted + hours(1);
  EXPECT_TRUE(waits_for_running(*sequence, reader_));
  sequence = make("alpha");
  sequence->request.deadline = sequence->submitted + std::chrono::minutes(20);
  reader_->admitted -= std::chrono::minutes(20);
  EXPECT_TRUE(waits_for_running(*sequence, reader_)) << "ten minutes are left";
  sequence = make("alpha");
  sequence->request.deadline = sequence->submitted - std::chrono::minutes(1);
  reader_->admitted -= hours(1);
  EXPECT_FALSE(waits_for_running(*sequence, reader_)) << "late is not ahead of time";
}

class WaitingForPlainReuse : public WaitingForAPlan {
 protected:
  WaitingForPlainReuse() : WaitingForAPlan(ReusePlan::reuse_all()) {}
};

TEST_F(WaitingForPlainReuse, IsOnlyForWhatFollowsIt) {
  ASSERT_TRUE(reader_->choice.stored.plan.is_reuse_all());
  ASSERT_EQ(reader_->choice.stored.num_blocks(), kBlocks);
  EXPECT_FALSE(waits_for_running(*make("alpha"), reader_)) << "nothing is mixed";
  const std::vector<int32_t> longer = random_prompt(9, (kBlocks + 2) * kBlockTokens + 1);
  store_blocks(longer, 3);
  auto reader = make_reader("alpha", longer);
  ASSERT_EQ(reader->choice.stored.num_blocks(), 3u);
  EXPECT_TRUE(waits_for_running(*make("alpha", longer), reader)) << "four blocks are computed";
}

// A sender that has answered and is still storing.
class WaitingForASender : public Waiting {
 protected:
  bool waits(const std::string& model = "alpha",
             const std::vector<int32_t>& tokens = prompt(),
             const std::string& salt = "") {
    return waits_for_leaving(*make(model, tokens, salt), sender_);
  }

  bool waits_when(const SharingRequest& sharing) {
    auto sequence = make("alpha");
    sequence->request.sharing = sharing;
    return waits_for_leaving(*sequence, sender_);
  }

  std::unique_ptr<Sequence> sender_ = make_reader("base");
};

TEST_F(WaitingForASender, IsForReceivers) {
  EXPECT_TRUE(waits());
  EXPECT_FALSE(waits("beta")) << "no plan book";
  EXPECT_FALSE(waits("alpha", prompt(), "salt"));
  auto running = make("alpha");
  EXPECT_FALSE(waits_for_running(*running, sender_)) << "it is still answering";
  sender_->choice.provenance = "mixed";
  EXPECT_FALSE(waits()) << "mixed caches are never sent";
}

TEST_F(WaitingForASender, IsForTheSameTokens) {
  EXPECT_FALSE(waits("alpha", other_in(0)));
  EXPECT_TRUE(waits("alpha", other_in(1)));
  sender_->num_stored_blocks = 1;
  EXPECT_FALSE(waits("alpha", other_in(0))) << "all of the context counts";
  EXPECT_FALSE(waits("alpha", other_in(1)));
  EXPECT_TRUE(waits("alpha", other_in(2)));
  sender_->num_stored_blocks = kBlocks - 1;
  EXPECT_TRUE(waits());
  sender_->num_stored_blocks = kBlocks;
  EXPECT_FALSE(waits()) << "all is there";
}

TEST_F(WaitingForASender, IsForThoseWhoNameIt) {
  for (const char* plan : {"auto", "reuse", "0,1,3"})
    EXPECT_TRUE(waits_when({Mode::kExplicit, "base", plan})) << plan;
  EXPECT_FALSE(waits_when({Mode::kExplicit, "base", "full"}));
  EXPECT_FALSE(waits_when({Mode::kExplicit, "beta", "reuse"}));
  EXPECT_FALSE(waits_when({Mode::kExplicit, "nobody", "reuse"}));
  EXPECT_FALSE(waits_when({Mode::kOff, "", ""}));
}

TEST_F(WaitingForASender, IsOffWhereSharingIs) {
  sharing_ = SharingMode::kOff;
  EXPECT_FALSE(waits());
  EXPECT_TRUE(waits_when({Mode::kExplicit, "base", "reuse"})) << "by name it is not";
  sharing_ = SharingMode::kPlainReuse;
  EXPECT_TRUE(waits());
}

}  // namespace
}  // namespace droidspeak
