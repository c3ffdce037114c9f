#include "store/tiers/read_pool.h"

#include <utility>

namespace droidspeak {

void ReadPool::run() {
  while (std::optional<Turn> turn = take())
    read_(turn->job->entries[turn->index], turn->index, *turn->job->sink);
}

std::optional<ReadPool::Turn> ReadPool::take() {
  MutexLock lock(mutex_);
  while (waiting_.empty() && !is_closed_) changed_.wait(mutex_);
  if (is_closed_) return std::nullopt;
  Turn turn = waiting_.front();
  if (++waiting_.front().index == turn.job->entries.size()) waiting_.pop_front();
  return turn;
}

void ReadPool::add(std::vector<EntryRead> entries, std::shared_ptr<ReadSink> sink) {
  if (entries.empty()) return;
  auto job = std::make_shared<const Job>(Job{std::move(entries), std::move(sink)});
  {
    MutexLock lock(mutex_);
    if (!is_closed_) {
      waiting_.push_back({job, 0});
      changed_.notify_all();
      return;
    }
  }
  for (size_t i = 0; i < job->entries.size(); ++i) job->sink->done(i, nullptr);
}

void ReadPool::close() {
  std::deque<Turn> left;
  {
    MutexLock lock(mutex_);
    is_closed_ = true;
    left.swap(waiting_);
    changed_.notify_all();
  }
  for (const Turn& turn : left) {
    for (size_t i = turn.index; i < turn.job->entries.size(); ++i) turn.job->sink->done(i, nullptr);
  }
}

}  // namespace droidspeak
