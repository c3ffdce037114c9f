#include "store/tiers/read_pool.h"

#include <algorithm>
#include <utility>

namespace droidspeak {

void ReadPool::run() {
  while (std::optional<Turn> turn = take()) {
    read_(turn->job->entries[turn->index], turn->index, *turn->job->sink);
    finish(*turn);
  }
}

// That which the fewest threads read for; among equals the one that has waited longest.
ReadPool::Loads::iterator ReadPool::next_load() {
  auto next = loads_.end();
  for (auto load = loads_.begin(); load != loads_.end(); ++load) {
    if (load->waiting.empty() || load->num_under_way >= most_of_one_) continue;
    if (next == loads_.end() || load->num_under_way < next->num_under_way) next = load;
  }
  return next;
}

ReadPool::Loads::iterator ReadPool::find_load(const void* name) {
  return std::ranges::find(loads_, name, &Load::name);
}

std::optional<ReadPool::Turn> ReadPool::take() {
  MutexLock lock(mutex_);
  auto load = next_load();
  while (load == loads_.end() && !is_closed_) {
    changed_.wait(mutex_);
    load = next_load();
  }
  if (is_closed_) return std::nullopt;
  Turn turn = load->waiting.front();
  if (++load->waiting.front().index == turn.job->entries.size()) load->waiting.pop_front();
  ++load->num_under_way;
  loads_.splice(loads_.end(), loads_, load);
  return turn;
}

void ReadPool::finish(const Turn& turn) {
  MutexLock lock(mutex_);
  auto load = find_load(turn.job->sink->load());
  --load->num_under_way;
  if (load->waiting.empty() && load->num_under_way == 0) loads_.erase(load);
  changed_.notify_one();  // this load may have had as many threads as it can
}

void ReadPool::add(std::vector<EntryRead> entries, std::shared_ptr<ReadSink> sink) {
  if (entries.empty()) return;
  auto job = std::make_shared<const Job>(Job{std::move(entries), std::move(sink)});
  {
    MutexLock lock(mutex_);
    if (!is_closed_) {
      const void* name = job->sink->load();
      auto load = find_load(name);
      if (load == loads_.end()) load = loads_.insert(load, {.name = name});
      load->waiting.push_back({job, 0});
      changed_.notify_all();
      return;
    }
  }
  for (size_t i = 0; i < job->entries.size(); ++i) job->sink->done(i, nullptr);
}

void ReadPool::close() {
  std::vector<Turn> left;
  {
    MutexLock lock(mutex_);
    is_closed_ = true;
    for (Load& load : loads_) {
      left.insert(left.end(), load.waiting.begin(), load.waiting.end());
      load.waiting.clear();
    }
    changed_.notify_all();
  }
  for (const Turn& turn : left) {
    for (size_t i = turn.index; i < turn.job->entries.size(); ++i) turn.job->sink->done(i, nullptr);
  }
}

}  // namespace droidspeak
