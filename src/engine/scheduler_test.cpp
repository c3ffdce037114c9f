#include "engine/scheduler.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "base/test_seed.h"
#include "engine/admission.h"
#include "engine/batch.h"

namespace droidspeak {
namespace {

std::unique_ptr<Sequence> make_sequence(uint64_t id,
                                        int32_t prompt_tokens,
                                        int32_t output_tokens,
                                        const std::string& model = "base") {
  GenerationRequest request{.model = model,
                            .prompt = std::vector<int32_t>(static_cast<size_t>(prompt_tokens), 1),
                            .max_tokens = output_tokens};
  auto sequence = std::make_unique<Sequence>(SequenceOptions{
      .request = std::move(request), .vocab_size = 8, .max_tokens = prompt_tokens + output_tokens});
  sequence->id = id;
  return sequence;
}

void add(Scheduler& scheduler, BlockPool& pool, std::unique_ptr<Sequence> sequence) {
  ASSERT_TRUE(sequence->blocks.reserve(pool, sequence->num_tokens()));
  scheduler.add(std::move(sequence));
}

// What the engine does with a plan, without a model: rows are computed, complete sequences get a
// token.
std::vector<const Sequence*> execute(const Step& step) {
  std::vector<const Sequence*> finished;
  for (const Step::Work& work : step.rows) {
    Sequence& sequence = *work.sequence;
    sequence.num_computed += work.num_tokens;
    if (sequence.num_missing() > 0) continue;
    sequence.tokens.push_back(2);
    if (sequence.num_tokens() >= sequence.max_tokens) finished.push_back(&sequence);
  }
  return finished;
}

TEST(Scheduler, RunsDecodeRowsBesidePrefillChunks) {
  BlockPool pool(64);
  Scheduler scheduler(pool, {.chunk_tokens = 128});
  add(scheduler, pool, make_sequence(1, 10, 5));
  execute(scheduler.next_step());
  add(scheduler, pool, make_sequence(2, 1000, 5));
  Step step = scheduler.next_step();
  ASSERT_EQ(step.rows.size(), 2u);
  EXPECT_EQ(step.rows[0].sequence->id, 1u);
  EXPECT_EQ(step.rows[0].num_tokens, 1);
  EXPECT_EQ(step.rows[1].num_tokens, 127);
}

TEST(Scheduler, GivesTheBudgetToTheOldestPromptFirst) {
  BlockPool pool(64);
  Scheduler scheduler(pool, {.chunk_tokens = 256});
  add(scheduler, pool, make_sequence(3, 200, 5));
  add(scheduler, pool, make_sequence(2, 100, 5));
  Step step = scheduler.next_step();
  ASSERT_EQ(step.rows.size(), 2u);
  EXPECT_EQ(step.rows[0].sequence->id, 2u);
  EXPECT_EQ(step.rows[0].num_tokens, 100);
  EXPECT_EQ(step.rows[1].num_tokens, 156);
}

// What a preempted run reused says nothing about the run that will give the answer.
TEST(Scheduler, PreemptedReportsBeginAnewUntilTheyWereGiven) {
  BlockPool pool(2);
  Scheduler scheduler(pool, {.chunk_tokens = 512});
  add(scheduler, pool, make_sequence(1, kBlockTokens, 8));
  add(scheduler, pool, make_sequence(2, kBlockTokens, 8));
  PrefillReport& report = scheduler.running()[1]->report;
  report = {.sender = "base",
            .plan = "0,2,3",
            .translated = true,
            .reused_tokens = 64,
            .cached_tokens = 64,
            .recomputed_layers = 1,
            .tier = "host",
            .load_ms = 3,
            .queue_ms = 7,
            .fallback = "why",
            .fallback_reason = "no_cache",
            .fallback_after_tokens = 3};
  execute({.rows = {{scheduler.running()[0].get(), kBlockTokens}}});
  Step step = scheduler.next_step();
  ASSERT_EQ(step.preempted.size(), 1u);
  const PrefillReport& fresh = step.preempted[0]->report;
  EXPECT_EQ(fresh.sender, "");
  EXPECT_EQ(fresh.plan, "full");
  EXPECT_FALSE(fresh.translated);
  EXPECT_EQ(fresh.reused_tokens, 0);
  EXPECT_EQ(fresh.cached_tokens, 0);
  EXPECT_EQ(fresh.recomputed_layers, 0);
  EXPECT_EQ(fresh.load_ms, 0);
  EXPECT_EQ(fresh.fallback, "");
  EXPECT_EQ(fresh.fallback_after_tokens, 0);
  EXPECT_EQ(fresh.fallback_reason, "");
  EXPECT_EQ(fresh.queue_ms, 7) << "it has waited once";

  Sequence& answered = *step.preempted[0];
  answered.report.sender = "base";
  answered.tokens.push_back(2);
  answered.release_blocks();
  EXPECT_EQ(answered.report.sender, "base") << "its reader knows it already";
  answered.report.fallback = "before the answer";
  answered.release_blocks();
  EXPECT_EQ(answered.report.fallback, "") << "so that a later one is told";
  answered.report.fallback = "within the answer";
  answered.report.fallback_after_tokens = 1;
  answered.release_blocks();
  EXPECT_EQ(answered.report.fallback, "within the answer") << "from there on it is another run's";
}

Step::Work work_of(Sequence& sequence, int32_t num_tokens) {
  return {&sequence, num_tokens};
}

TEST(Batch, TeachesThePrefillCostOnlyWhenAllItsRowsArePrefill) {
  auto prefill = make_sequence(1, 500, 5);
  auto scored = make_sequence(2, 500, 5);
  scored->request.wants_prompt_logprobs = true;
  std::vector<std::unique_ptr<Sequence>> decoding;
  for (uint64_t id = 10; id < 74; ++id) {
    decoding.push_back(make_sequence(id, 20, 5));
    decoding.back()->tokens.push_back(2);
    decoding.back()->num_computed = 20;
    ASSERT_TRUE(decoding.back()->is_decoding());
  }
  auto teaches = [](std::vector<Step::Work> work) {
    Batch batch;
    for (const Step::Work& one : work)
      batch.tokens.resize(batch.tokens.size() + static_cast<size_t>(one.num_tokens));
    batch.work = std::move(work);
    return is_plain_prefill(batch);
  };
  EXPECT_TRUE(teaches({work_of(*prefill, 256)}));
  EXPECT_TRUE(teaches({work_of(*prefill, kObservedRows)}));
  EXPECT_FALSE(teaches({work_of(*prefill, kObservedRows - 1)}));
  EXPECT_FALSE(teaches({work_of(*scored, 256)})) << "with logits of all rows";
  EXPECT_FALSE(teaches({work_of(*decoding[0], 1), work_of(*prefill, 256)}));
  std::vector<Step::Work> decodes;
  for (auto& sequence : decoding) decodes.push_back(work_of(*sequence, 1));
  EXPECT_FALSE(teaches(decodes)) << "64 rows, none of them of a prompt";
  auto preempted = make_sequence(80, 64, 20);
  preempted->tokens.resize(80, 2);
  EXPECT_TRUE(teaches({work_of(*preempted, 64)})) << "its prompt is read again";
  EXPECT_FALSE(teaches({work_of(*preempted, 80)})) << "with its answer";
}

TEST(Scheduler, PreemptsTheYoungestWhenNobodyCanGrow) {
  BlockPool pool(3);
  Scheduler scheduler(pool, {.chunk_tokens = 512});
  add(scheduler, pool, make_sequence(1, kBlockTokens, 8));
  add(scheduler, pool, make_sequence(2, kBlockTokens, 8));
  add(scheduler, pool, make_sequence(3, kBlockTokens, 8));
  execute(scheduler.next_step());  // everybody's next token needs a second block
  Step step = scheduler.next_step();
  ASSERT_EQ(step.preempted.size(), 2u);
  EXPECT_EQ(step.preempted[0]->id, 3u);
  EXPECT_EQ(step.preempted[1]->id, 2u);
  EXPECT_EQ(step.preempted[0]->num_computed, 0);
  EXPECT_EQ(step.preempted[0]->num_tokens(), kBlockTokens + 1) << "generated tokens are kept";
  ASSERT_EQ(step.rows.size(), 1u);
  EXPECT_EQ(step.rows[0].sequence->id, 1u);
  scheduler.check_integrity();
}

// It has answered one token, and goes on as it did before: there is something to draft.
std::unique_ptr<Sequence> make_quoting(uint64_t id, int32_t output_tokens) {
  auto sequence = make_sequence(id, 20, output_tokens);
  sequence->tokens.push_back(0);
  for (size_t i = 0; i < sequence->tokens.size(); ++i)
    sequence->tokens[i] = static_cast<int32_t>(i % 7);
  sequence->num_computed = 20;
  sequence->lookup = std::make_unique<PromptLookup>();
  return sequence;
}

// Beyond some rows a step is no longer bound by memory.
TEST(Scheduler, DraftsSoManyRowsInAStep) {
  BlockPool pool(64);
  Scheduler scheduler(pool, {.chunk_tokens = 512});
  for (uint64_t id = 1; id <= 10; ++id) add(scheduler, pool, make_quoting(id, 30));
  for (int turn = 0; turn < 2; ++turn) {
    Step step = scheduler.next_step();
    ASSERT_EQ(step.rows.size(), 10u);
    std::vector<size_t> drafts;
    for (const Step::Work& work : step.rows) drafts.push_back(work.sequence->drafts.size());
    EXPECT_EQ(drafts, (std::vector<size_t>{3, 3, 3, 3, 3, 1, 0, 0, 0, 0})) << "16 in all";
  }
}

TEST(Scheduler, NeverDraftsBeyondTheAnswersEnd) {
  for (int32_t left : {1, 2, 3, 4, 9}) {
    BlockPool pool(8);
    Scheduler scheduler(pool, {.chunk_tokens = 512});
    add(scheduler, pool, make_quoting(1, 1 + left));
    scheduler.next_step();
    EXPECT_EQ(std::ssize(scheduler.running()[0]->drafts), std::min(left - 1, 3)) << left;
  }
}

// However many decode.
TEST(Scheduler, APromptGetsABlockOfRowsAtLeast) {
  BlockPool pool(256);
  Scheduler scheduler(pool, {.chunk_tokens = 64});
  for (uint64_t id = 1; id <= 60; ++id) add(scheduler, pool, make_sequence(id, 1, 50));
  execute(scheduler.next_step());
  add(scheduler, pool, make_sequence(99, 300, 5));
  Step step = scheduler.next_step();
  ASSERT_EQ(step.rows.size(), 61u);
  EXPECT_EQ(step.rows.back().num_tokens, kBlockTokens);
}

std::vector<uint64_t> order_of(WaitingLine& line) {
  std::vector<uint64_t> order;
  while (auto sequence = line.take([](Sequence&) { return Admit::kNow; })) {
    line.check_integrity();
    order.push_back(sequence->id);
  }
  return order;
}

// Every running sequence may need another block in the next step.
TEST(Admission, LeavesABlockForEachThatRuns) {
  BlockPool pool(8);
  auto decision = [&](int32_t prompt_tokens, int32_t num_running) {
    return decide_admission(*make_sequence(1, prompt_tokens, 1), pool, num_running, {10});
  };
  EXPECT_EQ(decision(63, 7), Admit::kNow);
  EXPECT_EQ(decision(64, 7), Admit::kNow) << "all blocks are enough for anybody";
  auto held = pool.take(1);
  ASSERT_TRUE(held);
  EXPECT_EQ(decision(63, 6), Admit::kNow);
  EXPECT_EQ(decision(64, 6), Admit::kFull) << "the next token begins another block";
  EXPECT_EQ(decision(63, 7), Admit::kFull);
  EXPECT_EQ(decision(64, 5), Admit::kNow);
  held.reset();
  EXPECT_EQ(decision(1, 9), Admit::kNow);
  EXPECT_EQ(decision(1, 10), Admit::kFull) << "so many may run";
}

TEST(Admission, BlocksThatOthersHoldNeedNoRoom) {
  BlockPool pool(8);
  auto held = pool.take(6);
  ASSERT_TRUE(held);
  auto decision = [&](int32_t num_held_blocks, int32_t num_running) {
    return decide_admission(*make_sequence(1, 5 * kBlockTokens, 1), pool, num_running,
                            {10, num_held_blocks});
  };
  EXPECT_EQ(decision(5, 1), Admit::kNow) << "one of its own, and one to grow";
  EXPECT_EQ(decision(5, 2), Admit::kFull);
  EXPECT_EQ(decision(4, 1), Admit::kFull);
  EXPECT_EQ(decision(6, 9), Admit::kNow) << "all blocks are enough for anybody";
}

TEST(WaitingLine, TakesVariantsInTurn) {
  WaitingLine line;
  for (uint64_t id = 1; id <= 4; ++id) line.push(make_sequence(id, 1, 1, "flood"));
  line.push(make_sequence(5, 1, 1, "other"));
  line.push(make_sequence(6, 1, 1, "other"));
  EXPECT_EQ(order_of(line), (std::vector<uint64_t>{1, 5, 2, 6, 3, 4}));
}

TEST(WaitingLine, TakesTenantsInTurnHoweverManyVariantsTheyAskFor) {
  WaitingLine line;
  auto push = [&](uint64_t id, const std::string& tenant, const std::string& model) {
    auto sequence = make_sequence(id, 1, 1, model);
    sequence->request.tenant = tenant;
    line.push(std::move(sequence));
  };
  push(1, "one", "a");
  push(2, "one", "a");
  push(3, "one", "b");
  push(4, "two", "a");
  push(5, "two", "a");
  EXPECT_EQ(order_of(line), (std::vector<uint64_t>{1, 4, 3, 5, 2}));
}

TEST(WaitingLine, SmallerPrioritiesOfATenantGoFirst) {
  WaitingLine line;
  auto push = [&](uint64_t id, const std::string& tenant, int32_t priority) {
    auto sequence = make_sequence(id, 1, 1, id % 2 == 0 ? "a" : "b");
    sequence->request.tenant = tenant;
    sequence->request.priority = priority;
    line.push(std::move(sequence));
  };
  push(1, "one", 0);
  push(2, "one", 5);
  push(3, "one", -1);
  push(4, "one", -1);
  push(5, "two", 100);
  EXPECT_EQ(order_of(line), (std::vector<uint64_t>{3, 5, 4, 1, 2}))
      << "another tenant's turn does not depend on them";
}

TEST(WaitingLine, LetsPreemptedSequencesGoFirst) {
  WaitingLine line;
  line.push(make_sequence(1, 1, 1));
  line.push_preempted(make_sequence(9, 1, 1));
  line.push_preempted(make_sequence(8, 1, 1));
  EXPECT_EQ(line.take([](Sequence&) { return Admit::kNow; })->id, 8u);
  line.check_integrity();
}

TEST(WaitingLine, PassesOnlyThoseWhoMayBePassed) {
  WaitingLine line;
  line.push(make_sequence(1, 1, 1));
  line.push(make_sequence(2, 1, 1));
  auto later = [](Sequence& sequence) { return sequence.id == 1 ? Admit::kLater : Admit::kNow; };
  auto full = [](Sequence& sequence) { return sequence.id == 1 ? Admit::kFull : Admit::kNow; };
  EXPECT_EQ(line.take(full), nullptr);
  EXPECT_EQ(line.take(later)->id, 2u);
  EXPECT_EQ(line.size(), 1u);
}

// Random arrivals, cancels and lengths on a small pool: every request that is not cancelled ends
// with all its tokens, and nothing leaks.
void run_random_load(uint32_t seed) {
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  BlockPool pool(static_cast<int32_t>(6 + random() % 20));
  Scheduler scheduler(pool, {.chunk_tokens = static_cast<int32_t>(16 + random() % 300)});
  WaitingLine line;
  const AdmissionOptions admission{.max_running = static_cast<int32_t>(1 + random() % 12)};
  uint64_t next_id = 1;
  size_t arrived = 0;
  size_t ended = 0;
  size_t preempted = 0;
  for (int turn = 0; turn < 4000 && (arrived < 60 || ended < arrived); ++turn) {
    if (arrived < 60 && random() % 3 == 0) {
      auto prompt = static_cast<int32_t>(1 + random() % static_cast<uint32_t>(5 * kBlockTokens));
      auto output = static_cast<int32_t>(1 + random() % static_cast<uint32_t>(kBlockTokens));
      auto sequence = make_sequence(next_id++, prompt, output, random() % 2 == 0 ? "a" : "b");
      sequence->request.tenant = random() % 2 == 0 ? "one" : "two";
      sequence->request.priority = static_cast<int32_t>(random() % 3);
      line.push(std::move(sequence));
      ++arrived;
    }
    if (random() % 40 == 0) {
      uint64_t victim = random() % next_id;
      auto is_victim = [&](const Sequence& sequence) { return sequence.id == victim; };
      ended += line.remove_if(is_victim).size() + scheduler.remove_if(is_victim).size();
    }
    auto decide = [&](Sequence& s) {
      return decide_admission(s, pool, scheduler.num_running(), admission);
    };
    while (auto sequence = line.take(decide)) add(scheduler, pool, std::move(sequence));
    Step step = scheduler.next_step();
    preempted += step.preempted.size();
    for (auto& sequence : step.preempted) line.push_preempted(std::move(sequence));
    ASSERT_TRUE(scheduler.num_running() == 0 || !step.is_empty())
        << "a step with running sequences does something";
    auto finished = execute(step);
    auto is_finished = [&](const Sequence& s) {
      return std::find(finished.begin(), finished.end(), &s) != finished.end();
    };
    for (auto& sequence : scheduler.remove_if(is_finished)) {
      ASSERT_EQ(sequence->num_tokens(), sequence->max_tokens);
      ++ended;
    }
    scheduler.check_integrity();
    line.check_integrity();
  }
  EXPECT_EQ(ended, arrived) << "every request ends (" << preempted << " preemptions)";
  EXPECT_EQ(pool.num_free(), pool.num_blocks());
}

TEST(Scheduler, EveryRequestEndsUnderRandomLoad) {
  uint32_t first = test_seed();
  for (uint32_t i = 0; i < 30; ++i) run_random_load(first + i);
}

}  // namespace
}  // namespace droidspeak
