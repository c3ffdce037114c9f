#include "store/tiers/read_pool.h"

#include <algorithm>
#include <utility>

namespace droidspeak {

// Who has read looks itself for what it may read now: nobody else needs to be woken.
void ReadPool::run() {
  while (std::optional<Readings::iterator> reading = take()) {
    const Turn& turn = (*reading)->turn;
    read_(turn.entry(), turn.index, *turn.job->sink);
    MutexLock lock(mutex_);
    under_way_.erase(*reading);
  }
}

// That which the fewest threads read for; among equals the one that has waited longest.
ReadPool::Loads::iterator ReadPool::next_load() {
  std::erase_if(loads_, [](Load& load) {
    while (!load.waiting.empty() && load.waiting.front().has_begun()) load.waiting.pop_front();
    return load.waiting.empty();
  });
  auto next = loads_.end();
  size_t fewest = most_of_one_;
  for (auto load = loads_.begin(); load != loads_.end(); ++load) {
    const size_t count = num_under_way(load->id);
    if (count >= fewest) continue;
    fewest = count;
    next = load;
  }
  return next;
}

ReadPool::Load& ReadPool::load_of(LoadId id) {
  auto load = std::ranges::find(loads_, id, &Load::id);
  return load != loads_.end() ? *load : loads_.emplace_back(Load{.id = id});
}

std::shared_ptr<ReadPool::Job> ReadPool::find_job(const ReadSink& sink) const {
  for (const Load& load : loads_) {
    for (const Turn& turn : load.waiting) {
      if (turn.job->sink.get() == &sink) return turn.job;
    }
  }
  return nullptr;
}

size_t ReadPool::num_under_way(LoadId load) const {
  return static_cast<size_t>(std::ranges::count(under_way_, load, &Reading::load));
}

std::optional<ReadPool::Readings::iterator> ReadPool::take() {
  MutexLock lock(mutex_);
  auto load = next_load();
  while (load == loads_.end() && !is_closed_) {
    changed_.wait(mutex_);
    load = next_load();
  }
  if (is_closed_) return std::nullopt;
  Turn turn = std::move(load->waiting.front());
  load->waiting.pop_front();
  turn.job->has_begun[turn.index] = true;
  loads_.splice(loads_.end(), loads_, load);
  return under_way_.insert(under_way_.end(), {std::move(turn), load->id, clock_.now()});
}

void ReadPool::add(std::vector<EntryRead> entries, std::shared_ptr<ReadSink> sink) {
  const size_t count = entries.size();
  auto job =
      std::make_shared<Job>(Job{std::move(entries), std::move(sink), std::vector<bool>(count)});
  {
    MutexLock lock(mutex_);
    if (!is_closed_) {
      Load& load = load_of(job->sink->load());
      for (size_t i = 0; i < count; ++i) load.waiting.push_back({job, i});
      changed_.notify_all();
      return;
    }
  }
  for (size_t i = 0; i < count; ++i) job->sink->done(i, nullptr);
}

void ReadPool::share(LoadId load, const ReadSink& sink, std::span<const size_t> indices) {
  MutexLock lock(mutex_);
  const std::shared_ptr<Job> job = find_job(sink);
  if (!job) return;  // all have begun
  Load& sharing = load_of(load);
  for (size_t index : indices) sharing.waiting.push_back({job, index});
  changed_.notify_all();
}

std::vector<Digest> ReadPool::hanging() const {
  std::vector<Digest> keys;
  MutexLock lock(mutex_);
  for (const Reading& reading : under_way_) {
    if (clock_.now() - reading.since >= kHangs && !reading.turn.job->sink->is_wanted())
      keys.push_back(reading.turn.entry().key);
  }
  return keys;
}

void ReadPool::close() {
  std::vector<Turn> left;
  {
    MutexLock lock(mutex_);
    is_closed_ = true;
    for (const Load& load : loads_) {
      for (const Turn& turn : load.waiting) {
        if (!turn.has_begun()) left.push_back(turn);
        turn.job->has_begun[turn.index] = true;
      }
    }
    loads_.clear();
    changed_.notify_all();
  }
  for (const Turn& turn : left) turn.job->sink->done(turn.index, nullptr);
}

}  // namespace droidspeak
