// Reading prompts step by step, without the engine around it.
#include "engine/prompt_reader.h"

#include <future>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "engine/batch_runner.h"
#include "engine/engine_fixture.h"
#include "engine/load_patience.h"
#include "store/test_entries.h"

namespace droidspeak {
namespace {

constexpr int32_t kPrompt = 5 * kBlockTokens + 1;

TranslationMaps small_maps() {
  TranslationMaps maps;
  for (int32_t layer = 0; layer < 4; ++layer)
    maps.kv[layer] = {1, std::vector<float>(64, 0.01f), std::vector<float>(64, 0.01f),
                      std::vector<float>(64, 0.0f)};
  return maps;
}

// base -> alpha raw and base -> beta translated, both with plan 0,1,3.
class PromptReading : public testing::Test {
 protected:
  PromptReading() {
    family_.add_book("base", "alpha", {{{0, 1, 3}, 0.995}});
    family_.add_book("base", "beta", {{{0, 1, 3}, 0.995}}, small_maps());
    books_ = std::make_unique<PlanBooks>(family_.ops(), models_.config(), family_.file());
    chooser_ = std::make_unique<PrefillChooser>(models_, *books_, *store_, kv_.pool(), costs_,
                                                ChooserOptions{.layout = layout_});
    writer_ = std::make_unique<PromptWriter>(PromptWriter::Parts{.ops = family_.ops(),
                                                                 .kv = kv_,
                                                                 .store = *store_,
                                                                 .books = *books_,
                                                                 .chooser = *chooser_,
                                                                 .adapters = adapters_,
                                                                 .write_back = write_back_,
                                                                 .on_progress = [] {}});
    reader_ = std::make_unique<PromptReader>(PromptReader::Parts{.ops = family_.ops(),
                                                                 .kv = kv_,
                                                                 .store = store_,
                                                                 .chooser = *chooser_,
                                                                 .writer = *writer_,
                                                                 .costs = costs_,
                                                                 .metrics = metrics_,
                                                                 .host_threads = host_threads_,
                                                                 .slow_threads = slow_threads_,
                                                                 .on_progress = [] {}});
  }

  std::unique_ptr<Sequence> sequence(const std::string& model, const std::string& plan = "") {
    GenerationRequest request{
        .model = model, .prompt = random_prompt(1, kPrompt), .max_tokens = kBlockTokens};
    if (!plan.empty()) request.sharing = {SharingRequest::Mode::kExplicit, "base", plan};
    auto made = std::make_unique<Sequence>(SequenceOptions{.request = std::move(request),
                                                           .variant = models_.get(model),
                                                           .vocab_size = 320,
                                                           .max_tokens = kPrompt + kBlockTokens});
    made->exact_keys = chooser_->exact_keys(*made, *made->variant);
    return made;
  }

  // Blocks of the prompt as the variant has read them.
  void store_blocks(const std::string& model, size_t count, std::vector<EntryId> entries) {
    auto any = sequence(model);
    std::vector<std::byte> bytes(layout_.layer_bytes());
    std::vector<EntryBytes> filled;
    for (EntryId id : entries) filled.push_back({id, bytes});
    for (size_t i = 0; i < count; ++i)
      ASSERT_TRUE(put_entries(*store_, {.key = any->exact_keys.at(i)}, filled));
  }

  std::vector<EntryId> with_input() const {
    std::vector<EntryId> entries = key_value_entries(4);
    entries.push_back(input(1));
    return entries;
  }

  // One of the layers is of another size: a miss when it is read.
  void spoil_block(const std::string& model, size_t number) {
    auto any = sequence(model);
    store_->erase(std::span(any->exact_keys).subspan(number, 1));
    std::vector<std::byte> bytes(layout_.layer_bytes());
    std::vector<EntryBytes> entries;
    for (int32_t layer = 0; layer < 4; ++layer) entries.push_back({kv(layer), bytes});
    entries[2].bytes = entries[2].bytes.first(bytes.size() / 2);
    entries.push_back({input(1), bytes});
    ASSERT_TRUE(put_entries(*store_, {.key = any->exact_keys.at(number)}, entries));
  }

  // Tokens that the last of the rows gives.
  std::vector<SampledToken> run_rows(Sequence& reading, int32_t num_tokens) {
    Step::Work work{&reading, num_tokens};
    BatchRunner::Sampled sampled = runner_.run(build_batches(std::span(&work, 1)).front());
    reader_->advance(reading, num_tokens);
    writer_->store_blocks(reading);
    return sampled[0].tokens;
  }

  void wait_for_load(Sequence& reading) {
    while (!reading.reuse->is_loaded() && !reading.reuse->failure())
      reading.reuse->wait_for_progress();
  }

  EngineMetrics counted() const { return metrics_.snapshot(); }

  TinyFamily family_;
  ModelFamily models_{family_.ops(), family_.file(), TinyFamily::exact()};
  KvLayout layout_ = models_.config().kv_layout(DType::kF32);
  KvCache kv_{family_.ops().device(), layout_, 16 * layout_.block_bytes()};
  SteadyClock clock_;
  std::shared_ptr<CacheStore> store_ =
      std::make_shared<CacheStore>(StoreOptions{.host_bytes = uint64_t{64} << 20}, clock_);
  CostModel costs_{{.token_seconds = 1e-3, .bandwidths = {1e9, 5e8, 1e9, 1e8}}, 4};
  AdapterRegistry adapters_{models_, *store_, kv_.pool(), 8};
  MetricsBoard metrics_;
  TransferThreads host_threads_;
  TransferThreads slow_threads_;
  WriteBack write_back_{family_.ops().device()};
  BatchRunner runner_{family_.ops(), kv_};
  std::unique_ptr<PlanBooks> books_;
  std::unique_ptr<PrefillChooser> chooser_;
  std::unique_ptr<PromptWriter> writer_;
  std::unique_ptr<PromptReader> reader_;
};

TEST_F(PromptReading, WhoIsPreemptedIsCountedOnce) {
  auto reading = sequence("alpha");
  reader_->begin(*reading, 0);
  TimePoint admitted = reading->admitted;
  reading->release_blocks();
  reader_->begin(*reading, 0);
  EXPECT_EQ(counted().prompt_tokens, static_cast<uint64_t>(kPrompt));
  EXPECT_EQ(counted().prefix_cache_queries, static_cast<uint64_t>(kPrompt));
  EXPECT_EQ(counted().queue_seconds.count, 1u);
  EXPECT_EQ(reading->admitted, admitted) << "reading it again is a part of its prefill";
}

TEST_F(PromptReading, WithoutRoomNothingBegins) {
  auto first = sequence("alpha");
  auto second = sequence("beta");
  auto third = sequence("base");
  EXPECT_TRUE(reader_->begin(*first, 0));
  EXPECT_TRUE(reader_->begin(*second, 0));
  EXPECT_FALSE(reader_->begin(*third, 0)) << "of 16 blocks";
  EXPECT_TRUE(third->blocks.blocks().empty());
  EXPECT_EQ(counted().prompt_tokens, 2 * static_cast<uint64_t>(kPrompt));
  first->release_blocks();
  EXPECT_TRUE(reader_->begin(*third, 0));
}

TEST_F(PromptReading, EmbeddingsDoNotAskForCaches) {
  auto reading = sequence("alpha");
  reading->request.wants_embedding = true;
  reader_->begin(*reading, 0);
  EXPECT_EQ(counted().prompt_tokens, static_cast<uint64_t>(kPrompt));
  EXPECT_EQ(counted().prefix_cache_queries, 0u);
  EXPECT_EQ(reading->writer, nullptr) << "nobody goes on from there";
}

TEST_F(PromptReading, TakesWhatIsOnTheDeviceAndSaysSo) {
  auto first = sequence("alpha");
  reader_->begin(*first, 0);
  run_rows(*first, kPrompt);
  EXPECT_EQ(first->num_sent_blocks, 5);
  EXPECT_EQ(first->num_stored_blocks, 5);
  auto second = sequence("alpha");
  reader_->begin(*second, 0);
  EXPECT_EQ(second->report.tier, "device");
  EXPECT_EQ(second->report.cached_tokens, 5 * kBlockTokens);
  EXPECT_EQ(second->report.sender, "");
  EXPECT_EQ(second->num_computed, 5 * kBlockTokens);
  EXPECT_EQ(second->num_shared_blocks, 5u);
  EXPECT_EQ(second->num_stored_blocks, 5);
  EXPECT_EQ(second->num_sent_blocks, 5);
  for (size_t i = 0; i < 5; ++i)
    EXPECT_EQ(second->blocks.blocks()[i], first->blocks.blocks()[i]) << i;
  EXPECT_EQ(counted().hits_by_tier["device"], 1u);
  EXPECT_EQ(counted().bytes_loaded, 0u);
}

TEST_F(PromptReading, WhatIsPartlyOnTheDeviceIsLoadedBehindIt) {
  const int32_t right = family_.reference_greedy("alpha", random_prompt(1, kPrompt), 1)[0];
  auto first = sequence("alpha");
  reader_->begin(*first, 0);
  EXPECT_EQ(run_rows(*first, kPrompt).at(0).token, right);
  kv_.pool().forget(std::span(first->exact_keys).subspan(2));
  auto second = sequence("alpha");
  reader_->begin(*second, 0);
  ASSERT_EQ(second->choice.num_resident, 2u);
  ASSERT_NE(second->reuse, nullptr);
  wait_for_load(*second);
  EXPECT_EQ(run_rows(*second, 1).at(0).token, right);
  EXPECT_EQ(counted().bytes_loaded, 3 * layout_.block_bytes());
  EXPECT_EQ(second->report.cached_tokens, 5 * kBlockTokens);
}

TEST_F(PromptReading, BlocksThatAnAnswerFillsAreStoredAndShared) {
  auto reading = sequence("alpha");
  reader_->begin(*reading, 0);
  int32_t next = run_rows(*reading, kPrompt).at(0).token;
  while (reading->num_tokens() < 6 * kBlockTokens + 1) {
    reading->tokens.push_back(next);
    ASSERT_TRUE(reading->blocks.reserve(kv_.pool(), reading->num_tokens()));
    next = run_rows(*reading, 1).at(0).token;
  }
  ASSERT_EQ(reading->exact_keys.size(), 6u);
  EXPECT_EQ(reading->exact_keys, chooser_->exact_keys(*reading, *reading->variant));
  EXPECT_EQ(chooser_->stored_blocks(reading->exact_keys), 6u);
  EXPECT_EQ(kv_.pool().longest_prefix(reading->exact_keys), 6u);
  EXPECT_EQ(reading->num_stored_blocks, 6);
}

TEST_F(PromptReading, ALoadIsCountedByItsBytesAndTeachesItsRate) {
  store_blocks("alpha", 5, key_value_entries(4));
  auto reading = sequence("alpha");
  const double rate = costs_.load_seconds(1000, Tier::kHost);
  reader_->begin(*reading, 0);
  ASSERT_NE(reading->reuse, nullptr);
  EXPECT_EQ(reading->num_stored_blocks, 5);
  EXPECT_EQ(reading->num_sent_blocks, 5);
  wait_for_load(*reading);
  EXPECT_EQ(reading->reuse->recomputable_tokens(), 0);
  EXPECT_EQ(reading->reuse->recompute_chunk(kBlockTokens), 0);
  EXPECT_GT(reading->reuse->elapsed_seconds(), 0);
  run_rows(*reading, 1);
  EXPECT_EQ(reading->reuse, nullptr);
  EXPECT_EQ(counted().bytes_loaded, 5 * layout_.block_bytes());
  EXPECT_EQ(counted().hits_by_tier["host"], 1u);
  EXPECT_EQ(reading->report.tier, "host");
  EXPECT_GT(reading->report.load_ms, 0);
  EXPECT_NE(costs_.load_seconds(1000, Tier::kHost), rate);
}

// Those for slower tiers may all hang.
TEST_F(PromptReading, WhatIsInMemoryIsLoadedByThreadsOfItsOwn) {
  std::promise<void> end;
  std::shared_future<void> ended = end.get_future().share();
  for (size_t i = 0; i < TransferThreads::kMaxThreads; ++i)
    slow_threads_.start([ended] { ended.wait(); });
  store_blocks("alpha", 5, key_value_entries(4));
  auto reading = sequence("alpha");
  reader_->begin(*reading, 0);
  wait_for_load(*reading);
  EXPECT_TRUE(reading->reuse->is_loaded());
  end.set_value();
}

TEST_F(PromptReading, InputsAreRefilledWhileNobodyWaits) {
  store_blocks("base", 5, key_value_entries(4));  // without E for the books
  auto is_refilled = [&](size_t num_waiting, auto change) {
    auto reading = sequence("base");
    change(*reading);
    reader_->begin(*reading, num_waiting);
    return reading->choice.refills_inputs;
  };
  auto nothing = [](Sequence&) {};
  EXPECT_FALSE(is_refilled(1, nothing)) << "others wait";
  EXPECT_FALSE(is_refilled(0, [](Sequence& reading) { reading.num_failed_loads = 1; }));
  EXPECT_FALSE(is_refilled(0, [](Sequence& reading) { reading.tokens.push_back(1); }))
      << "it has been answered in part";
  EXPECT_TRUE(is_refilled(0, nothing));
  EXPECT_FALSE(is_refilled(0, nothing)) << "once is enough";
}

TEST_F(PromptReading, ARecomputedContextTeachesTheCostOfComputing) {
  store_blocks("base", 4, with_input());
  auto reading = sequence("alpha", "0,1,3");
  reader_->begin(*reading, 0);
  ASSERT_EQ(reading->choice.source(), PrefillChoice::Source::kSender);
  wait_for_load(*reading);
  const double before = costs_.compute_seconds(0, 100, 4);
  reader_->recompute(*reading, 2 * kBlockTokens);
  EXPECT_EQ(reading->reuse->recomputed_tokens(), 2 * kBlockTokens);
  EXPECT_EQ(reading->reuse->recomputable_tokens(), 2 * kBlockTokens);
  EXPECT_FALSE(reading->reuse->is_layer_ready(1)) << "it is not recomputed yet";
  EXPECT_TRUE(reading->reuse->is_layer_ready(0));
  EXPECT_NE(costs_.compute_seconds(0, 100, 4), before);
  EXPECT_GT(counted().compute_seconds, 0);
}

TEST_F(PromptReading, ATranslatedContextTeachesNothing) {
  store_blocks("base", 4, with_input());
  auto reading = sequence("beta", "0,1,3");
  reader_->begin(*reading, 0);
  ASSERT_TRUE(reading->choice.is_translated());
  wait_for_load(*reading);
  const double before = costs_.compute_seconds(0, 100, 4);
  reader_->recompute(*reading, 4 * kBlockTokens);
  EXPECT_EQ(reading->reuse->recomputed_tokens(), 4 * kBlockTokens);
  EXPECT_EQ(reading->reuse->recomputable_tokens(), 0);
  EXPECT_EQ(reading->reuse->recompute_chunk(kBlockTokens), 0) << "nothing is left";
  EXPECT_TRUE(reading->reuse->is_layer_ready(1));
  EXPECT_EQ(costs_.compute_seconds(0, 100, 4), before);
  run_rows(*reading, kBlockTokens + 1);
  EXPECT_TRUE(reading->report.translated);
  EXPECT_EQ(reading->report.sender, "base");
  EXPECT_EQ(reading->report.reused_tokens, 4 * kBlockTokens);
  EXPECT_EQ(counted().layers_recomputed, 2u);
}

// A token of a reused context costs its share of the layers.
TEST_F(PromptReading, AStepRecomputesAsManyTokensAsItsBudgetAllows) {
  store_blocks("base", 5, with_input());
  auto recomputing = sequence("alpha", "0,1,3");
  auto computed = sequence("alpha", "full");
  recomputing->id = 1;
  computed->id = 2;
  reader_->begin(*recomputing, 0);
  reader_->begin(*computed, 0);
  wait_for_load(*recomputing);
  const double share = (2 - 5.0 / 6) / 4;
  auto planned = [&](int32_t chunk_tokens) {
    Scheduler scheduler(kv_.pool(), {.chunk_tokens = chunk_tokens, .num_layers = 4});
    scheduler.add(std::move(recomputing));
    scheduler.add(std::move(computed));
    Step step = scheduler.next_step();
    auto all = scheduler.remove_if([](const Sequence&) { return true; });
    recomputing = std::move(all[0]);
    computed = std::move(all[1]);
    int32_t rows = step.rows.empty() ? 0 : step.rows[0].num_tokens;
    EXPECT_EQ(step.recomputes.size(), 1u);
    return std::pair(step.recomputes.at(0).num_tokens, rows);
  };
  EXPECT_EQ(planned(80), std::pair(static_cast<int32_t>(80 / share), 1)) << "what is rounded off";
  const auto cost = static_cast<int32_t>(5 * kBlockTokens * share);
  EXPECT_EQ(planned(200), std::pair(5 * kBlockTokens, 200 - cost)) << "there are no more";
}

// Scout, draft, choice, and then the chosen tokens with all that follows the context.
TEST_F(PromptReading, LooksAtTokensInItsStages) {
  store_blocks("base", 4, key_value_entries(4));
  auto reading = sequence("alpha", "reuse+10%");
  reader_->begin(*reading, 0);
  wait_for_load(*reading);
  ASSERT_TRUE(reading->is_looking(Looking::Stage::kScout));
  EXPECT_EQ(reading->num_missing(), kBlockTokens + 1);
  std::vector<SampledToken> draft = run_rows(*reading, kBlockTokens + 1);
  ASSERT_EQ(draft.size(), 1u);
  reader_->look_on(*reading, draft);
  ASSERT_TRUE(reading->is_looking(Looking::Stage::kDraft));
  EXPECT_EQ(reading->looking->draft, draft[0].token);
  EXPECT_TRUE(reading->looked_at.empty()) << "the draft looks, too";
  EXPECT_EQ(reading->num_missing(), 1);
  ASSERT_TRUE(reading->blocks.reserve(kv_.pool(), reading->num_positions()));
  EXPECT_TRUE(run_rows(*reading, 1).empty());
  EXPECT_EQ(reading->num_computed, kPrompt);
  reader_->look_on(*reading, {});
  ASSERT_TRUE(reading->is_looking(Looking::Stage::kRead));
  EXPECT_EQ(reading->looked_at.size(), 26u) << "a tenth of 256";
  EXPECT_EQ(reading->num_missing(), 26 + kBlockTokens + 1);
  writer_->note_stored(*reading);
  EXPECT_EQ(reading->writer, nullptr) << "what follows is the request's own";
  run_rows(*reading, 30);
  EXPECT_EQ(reading->num_missing(), kBlockTokens + 1 - 4);
  EXPECT_EQ(run_rows(*reading, reading->num_missing()).size(), 1u);
  EXPECT_EQ(reading->looking, nullptr);
  EXPECT_EQ(reading->num_computed, kPrompt);
  EXPECT_EQ(reading->report.looked_at_tokens, 26);
  EXPECT_EQ(reading->report.cached_tokens, 4 * kBlockTokens);
  EXPECT_EQ(counted().looked_at_tokens, 26u);
}

TEST_F(PromptReading, AFailedLoadLeavesTheBlocksInFrontOfIt) {
  store_blocks("alpha", 5, key_value_entries(4));
  spoil_block("alpha", 3);
  auto reading = sequence("alpha");
  reader_->begin(*reading, 0);
  ASSERT_EQ(reading->choice.stored.num_blocks(), 5u);
  wait_for_load(*reading);
  reading->pass = std::make_unique<LayerPass>();  // it was under way
  reader_->follow_failure(*reading, 0);
  EXPECT_EQ(reading->pass, nullptr);
  EXPECT_EQ(reading->choice.stored.num_blocks(), 3u);
  EXPECT_EQ(reading->num_computed, 3 * kBlockTokens);
  EXPECT_EQ(reading->num_failed_loads, 1);
  EXPECT_EQ(reading->lost_load_seconds, 0) << "no link was to blame";
  EXPECT_EQ(reading->report.fallback_reason, "load_failed");
  EXPECT_EQ(counted().fallbacks["load_failed"], 1u);
  EXPECT_FALSE(reading->stream->next(std::chrono::milliseconds(0)))
      << "the report comes with the first token";
  wait_for_load(*reading);
  reader_->follow_failure(*reading, 0);
  EXPECT_EQ(reading->num_failed_loads, 1) << "the rest is whole";
  EXPECT_NE(reading->reuse, nullptr);
}

// Another sequence has read the beginning while the load was under way.
TEST_F(PromptReading, AfterAFailedLoadSharesWhatIsOnTheDeviceByThen) {
  store_blocks("alpha", 5, key_value_entries(4));
  spoil_block("alpha", 3);
  auto reading = sequence("alpha");
  reader_->begin(*reading, 0);
  ASSERT_EQ(reading->choice.num_resident, 0u);
  wait_for_load(*reading);
  std::optional<std::vector<BlockLease>> leases = kv_.pool().take(2);
  for (size_t i = 0; i < 2; ++i) kv_.pool().label((*leases)[i].block(), reading->exact_keys[i]);
  reader_->follow_failure(*reading, 0);
  EXPECT_EQ(reading->choice.num_resident, 2u);
  EXPECT_EQ(reading->choice.stored.num_blocks(), 3u);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(reading->blocks.blocks()[i], (*leases)[i].block()) << i;
  EXPECT_EQ(reading->blocks.blocks().size(), 6u);
}

TEST_F(PromptReading, AfterSoManyFailedLoadsEverythingIsComputed) {
  store_blocks("alpha", 5, key_value_entries(4));
  for (int32_t failed : {6, 7}) {
    spoil_block("alpha", 4);
    auto reading = sequence("alpha");
    reading->num_failed_loads = failed;
    reader_->begin(*reading, 0);
    ASSERT_EQ(reading->choice.stored.num_blocks(), 5u);
    wait_for_load(*reading);
    reader_->follow_failure(*reading, 0);
    EXPECT_EQ(reading->num_failed_loads, failed + 1);
    if (failed == 6) {
      EXPECT_EQ(reading->choice.stored.num_blocks(), 4u);
      continue;
    }
    EXPECT_EQ(reading->choice.source(), PrefillChoice::Source::kCompute);
    EXPECT_EQ(reading->choice.stored.num_blocks(), 0u);
    EXPECT_EQ(reading->num_computed, 0);
    EXPECT_EQ(reading->reuse, nullptr);
    EXPECT_GE(reading->blocks.capacity_tokens(), kPrompt);
    EXPECT_NE(reading->writer, nullptr);
  }
}

TEST_F(PromptReading, WhatIsOnTheDeviceStaysWhenTheRestFails) {
  store_blocks("alpha", 5, key_value_entries(4));
  spoil_block("alpha", 2);
  auto reading = sequence("alpha");
  std::optional<std::vector<BlockLease>> lease = kv_.pool().take(1);
  kv_.pool().label((*lease)[0].block(), reading->exact_keys[0]);
  reader_->begin(*reading, 0);
  ASSERT_EQ(reading->choice.num_resident, 1u);
  ASSERT_EQ(reading->choice.stored.num_blocks(), 5u);
  wait_for_load(*reading);
  reader_->follow_failure(*reading, 0);
  EXPECT_EQ(reading->reuse, nullptr);
  EXPECT_EQ(reading->choice.stored.num_blocks(), 1u);
  EXPECT_EQ(reading->num_computed, kBlockTokens);
  EXPECT_EQ(reading->blocks.blocks()[0], (*lease)[0].block());
  EXPECT_EQ(reading->report.tier, "device");
  ASSERT_NE(reading->writer, nullptr) << "what is computed now is stored";
  run_rows(*reading, 4 * kBlockTokens + 1);
  EXPECT_EQ(chooser_->stored_blocks(reading->exact_keys), 5u);
}

TEST_F(PromptReading, AVariantThatIsUnloadedMeanwhileStoresNothing) {
  auto reading = sequence("alpha");
  reader_->begin(*reading, 0);
  run_rows(*reading, 2 * kBlockTokens);
  EXPECT_EQ(chooser_->stored_blocks(reading->exact_keys), 2u);
  ASSERT_TRUE(adapters_.unload("alpha"));
  run_rows(*reading, 3 * kBlockTokens + 1);
  EXPECT_EQ(store_->counters().of(Tier::kHost).entries, 0u);
  EXPECT_EQ(reading->writer, nullptr);
  EXPECT_EQ(kv_.pool().longest_prefix(reading->exact_keys), 0u);
  auto later = sequence("beta");
  later->variant = reading->variant;
  reader_->begin(*later, 0);
  EXPECT_EQ(later->writer, nullptr);
}

TEST_F(PromptReading, AReaderWhoHasSeenTheReportHearsThatTheCacheIsGone) {
  auto reading = sequence("alpha", "reuse");
  reader_->begin(*reading, 0);
  EXPECT_EQ(reading->report.fallback, "no cache of the sender");
  EXPECT_EQ(reading->report.fallback_after_tokens, 0);
  EXPECT_FALSE(reading->stream->next(std::chrono::milliseconds(0)));
  reading->tokens.push_back(1);
  reading->release_blocks();
  reading->choice = {
      .stored = {.sender_keys = {test_key(1)}}, .sender = models_.base(), .provenance = "a plan's"};
  reader_->begin(*reading, 0);
  std::optional<StreamItem> item = reading->stream->next(std::chrono::milliseconds(0));
  ASSERT_TRUE(item && std::holds_alternative<PrefillReport>(*item));
  EXPECT_EQ(std::get<PrefillReport>(*item).fallback, "the cache is gone");
  EXPECT_EQ(std::get<PrefillReport>(*item).fallback_after_tokens, 1);
  EXPECT_EQ(counted().fallbacks["no_cache"], 2u);
}

TEST_F(PromptReading, MapsThatTurnOutToBeUnusableAreSaidToBeTheReason) {
  TranslationMaps other = small_maps();
  other.kv[0].bias[0] = 1;
  save_translation(family_.folder() / "base-beta.safetensors", other);  // since the start
  store_blocks("base", 5, with_input());
  auto reading = sequence("beta");
  reader_->begin(*reading, 0);
  EXPECT_EQ(reading->choice.source(), PrefillChoice::Source::kCompute);
  EXPECT_EQ(reading->report.fallback_reason, "maps_unusable");
  EXPECT_NE(reading->report.fallback.find("was changed"), std::string::npos);
  auto named = sequence("beta", "0,1,3");
  reader_->begin(*named, 0);
  EXPECT_EQ(named->report.fallback, "the maps of the pair cannot be used");
  EXPECT_EQ(counted().fallbacks["maps_unusable"], 2u);
}

TEST_F(PromptReading, DiscardedBlocksAreGoneFromStoreAndDevice) {
  auto reading = sequence("alpha");
  reader_->begin(*reading, 0);
  run_rows(*reading, kPrompt);
  ASSERT_EQ(chooser_->stored_blocks(reading->exact_keys), 5u);
  ASSERT_EQ(kv_.pool().longest_prefix(reading->exact_keys), 5u);
  writer_->discard(*reading);
  EXPECT_EQ(chooser_->stored_blocks(reading->exact_keys), 0u);
  EXPECT_EQ(kv_.pool().longest_prefix(reading->exact_keys), 0u);
}

TEST_F(PromptReading, APromptOfOneBlockIsStored) {
  auto reading = sequence("alpha");
  reading->max_tokens = kBlockTokens;
  reader_->begin(*reading, 0);
  EXPECT_NE(reading->writer, nullptr);
  auto shorter = sequence("alpha");
  shorter->max_tokens = kBlockTokens - 1;
  reader_->begin(*shorter, 0);
  EXPECT_EQ(shorter->writer, nullptr) << "it never fills one";
}

// What a link that fails costs is about a twentieth of computing, with the time to ask it.
TEST_F(PromptReading, LinksMayLoseAShareOfTheTimeThatComputingTakes) {
  auto asking = sequence("base");
  auto costs_of = [&](double seconds) {
    return CostModel({.token_seconds = seconds / asking->num_tokens(), .attention_seconds = 0}, 1);
  };
  for (auto [computing, may_lose] : {std::pair(0.5, 0.2), {5.0, 0.2}, {8.0, 0.28}, {60.0, 0.35}}) {
    CostModel costs = costs_of(computing);
    LoadPatience patience(costs, std::chrono::seconds(2));
    for (Tier tier : {Tier::kPeer, Tier::kRemote}) {
      asking->load_tier = tier;
      EXPECT_NEAR(patience.limits_of(*asking).most_lost_seconds, may_lose, 1e-9) << computing;
    }
    asking->load_tier = Tier::kDisk;
    EXPECT_GT(patience.limits_of(*asking).most_lost_seconds, 1e9) << "it is no link";
    asking->lost_load_seconds = may_lose - 1e-6;
    EXPECT_TRUE(patience.resting_tiers(*asking, asking->submitted).none());
    asking->lost_load_seconds = may_lose + 1e-6;
    TierSet resting = patience.resting_tiers(*asking, asking->submitted);
    EXPECT_TRUE(resting[index_of(Tier::kPeer)] && resting[index_of(Tier::kRemote)]);
    EXPECT_EQ(resting.count(), 2u);
    asking->lost_load_seconds = 0;
  }
}

}  // namespace
}  // namespace droidspeak
