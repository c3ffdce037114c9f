#include "engine/scheduler.h"

#include <algorithm>
#include <set>

#include "base/check.h"

namespace droidspeak {

void Scheduler::add(std::unique_ptr<Sequence> sequence) {
  check(sequence->blocks.capacity_tokens() >= sequence->num_tokens(),
        "a running sequence has its blocks");
  auto place = std::find_if(running_.begin(), running_.end(),
                            [&](const auto& other) { return other->id > sequence->id; });
  running_.insert(place, std::move(sequence));
}

Step Scheduler::next_step() {
  Step step;
  add_decodes(step);
  add_prefills(step);
  if (step.is_empty()) add_follow(step);
  return step;
}

// Oldest first: whoever is preempted to make room is younger than every row planned so far.
void Scheduler::add_decodes(Step& step) {
  for (size_t i = 0; i < running_.size(); ++i) {
    if (!running_[i]->is_decoding()) continue;
    if (!grow(i, step)) break;  // it was the youngest and is gone
    step.rows.push_back({running_[i].get(), 1});
  }
  num_draft_rows_ = 0;
  for (const Step::Work& work : step.rows) draft(*work.sequence);
}

// Nobody gives up blocks for a draft, and none goes beyond the answer's end.
void Scheduler::draft(Sequence& sequence) {
  sequence.drafts.clear();
  int32_t most =
      std::min(sequence.max_tokens - sequence.num_tokens() - 1, kMaxDraftRows - num_draft_rows_);
  std::vector<int32_t> drafts = sequence.next_drafts(most);
  auto count = static_cast<int32_t>(drafts.size());
  if (count == 0 || !sequence.blocks.reserve(pool_, sequence.num_tokens() + count)) return;
  num_draft_rows_ += count;
  sequence.drafts = std::move(drafts);
}

// Room for all tokens of running_[index]; false when it had to give up its own blocks.
bool Scheduler::grow(size_t index, Step& step) {
  Sequence& sequence = *running_[index];
  while (!sequence.blocks.reserve(pool_, sequence.num_positions())) {
    std::unique_ptr<Sequence> youngest = std::move(running_.back());
    running_.pop_back();
    youngest->release_blocks();
    step.preempted.push_back(std::move(youngest));
    if (running_.size() == index) return false;
  }
  return true;
}

void Scheduler::add_prefills(Step& step) {
  int32_t budget =
      std::max(options_.chunk_tokens - static_cast<int32_t>(step.rows.size()), kBlockTokens);
  for (const auto& sequence : running_) {
    if (budget <= 0) return;
    if (sequence->is_decoding()) continue;
    switch (sequence->next()) {
      case Sequence::Next::kRows: {
        int32_t rows = std::min(sequence->num_missing(), budget);
        step.rows.push_back({sequence.get(), rows});
        budget -= rows;
        break;
      }
      case Sequence::Next::kRecompute: {
        // A token of a reused context costs its share of the layers.
        double share = sequence->choice.stored.recompute_work() / options_.num_layers;
        int32_t tokens = std::max(static_cast<int32_t>(budget / share), kBlockTokens);
        tokens = std::min(tokens, sequence->reuse->recomputable_tokens());
        step.recomputes.push_back({sequence.get(), tokens});
        budget -= static_cast<int32_t>(tokens * share);
        break;
      }
      case Sequence::Next::kFollow:
        step.follows.push_back({sequence.get(), sequence->pass->num_tokens});
        budget -= sequence->pass->num_tokens;
        break;
      case Sequence::Next::kLoad:
        break;
    }
  }
}

// While nothing else runs, being behind the loads by one layer is better than waiting for all.
void Scheduler::add_follow(Step& step) {
  for (const auto& sequence : running_) {
    if (!sequence->can_follow()) continue;
    step.follows.push_back(
        {sequence.get(), std::min(sequence->num_missing(), options_.chunk_tokens)});
    return;
  }
}

std::vector<std::unique_ptr<Sequence>> Scheduler::remove_if(
    const std::function<bool(const Sequence&)>& is_gone) {
  std::vector<std::unique_ptr<Sequence>> removed;
  for (auto& sequence : running_) {
    if (is_gone(*sequence)) removed.push_back(std::move(sequence));
  }
  std::erase(running_, nullptr);
  return removed;
}

void Scheduler::check_integrity() const {
  pool_.check_integrity();
  std::set<int32_t> held;
  for (size_t i = 0; i < running_.size(); ++i) {
    const Sequence& sequence = *running_[i];
    check(i == 0 || running_[i - 1]->id < sequence.id, "running sequences are in order of arrival");
    check(sequence.num_missing() > 0, "a running sequence has something to compute");
    check(sequence.blocks.capacity_tokens() >= sequence.num_computed,
          "blocks cover what was computed");
    std::span<const int32_t> blocks = sequence.blocks.blocks();
    for (size_t j = 0; j < blocks.size(); ++j) {
      bool is_own = held.insert(blocks[j]).second;
      bool is_complete = static_cast<int32_t>(j + 1) * kBlockTokens <= sequence.num_computed;
      check(is_own || is_complete, "what is written belongs to one sequence");
    }
  }
  check(static_cast<int32_t>(held.size()) == pool_.num_blocks() - pool_.num_free(),
        "every block given out belongs to a running sequence");
}

}  // namespace droidspeak
