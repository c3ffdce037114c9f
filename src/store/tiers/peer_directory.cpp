#include "store/tiers/peer_directory.h"

#include <algorithm>
#include <utility>

#include <spdlog/spdlog.h>

#include "redis/reply.h"

namespace droidspeak {
namespace {

constexpr size_t kBatch = 512;
constexpr size_t kMaxToTell = size_t{1} << 18;
constexpr int kRoundsPerHolding = 3;  // how often a record is told anew before it would end

DirectoryCommand get_command(std::string key) {
  DirectoryCommand command{std::move(key), {}};
  append_command(command.text, {"GET", command.key});
  return command;
}

DirectoryCommand set_command(std::string key,
                             std::string_view value,
                             std::chrono::milliseconds lifetime) {
  DirectoryCommand command{std::move(key), {}};
  append_command(command.text, {"SET", command.key, value, "PX", std::to_string(lifetime.count())});
  return command;
}

std::vector<Digest> take_some(std::vector<Digest>& from) {
  size_t count = std::min(from.size(), kBatch);
  auto begin = from.end() - static_cast<ptrdiff_t>(count);
  std::vector<Digest> some(begin, from.end());
  from.erase(begin, from.end());
  return some;
}

}  // namespace

PeerDirectory::PeerDirectory(PeerDirectoryParts parts)
    : parts_(std::move(parts)),
      records_(parts_.options.secret),
      link_(parts_.options.directory, parts_.options.stall),
      next_round_(std::chrono::steady_clock::now() + parts_.options.holding / kRoundsPerHolding),
      thread_([this] { run(); }) {}

PeerDirectory::~PeerDirectory() {
  {
    MutexLock lock(mutex_);
    is_stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
  if (!is_up_.load()) return;
  DirectoryCommand command{PeerRecords::node_name(parts_.node), {}};
  append_command(command.text, {"DEL", command.key});
  (void)static_cast<bool>(link_.run(std::span(&command, 1)));
}

void PeerDirectory::publish(const Digest& key) {
  MutexLock lock(mutex_);
  if (to_tell_.size() >= kMaxToTell) return;
  to_tell_.push_back(key);
  ++num_to_tell_;
  changed_.notify_all();
}

void PeerDirectory::ask(std::span<const Digest> keys) {
  std::vector<Digest> questions = parts_.index.questions(keys, std::chrono::steady_clock::now());
  if (questions.empty()) return;
  MutexLock lock(mutex_);
  to_ask_.insert(to_ask_.end(), questions.begin(), questions.end());
  changed_.notify_all();
}

void PeerDirectory::wait_for_answers(std::span<const Digest> keys, Time until) {
  MutexLock lock(mutex_);
  while (!is_stopping_) {
    keys = keys.subspan(parts_.index.num_known(keys));
    auto left = until - std::chrono::steady_clock::now();
    if (keys.empty() || left <= left.zero()) return;
    changed_.wait_for(mutex_, left);
  }
}

void PeerDirectory::drain() {
  MutexLock lock(mutex_);
  uint64_t wanted = num_to_tell_;
  while (num_told_ < wanted && is_up_.load() && !is_stopping_)
    changed_.wait_for(mutex_, parts_.options.stall);
}

// Waits until there is something to do, or it is time for the heartbeat.
PeerDirectory::Work PeerDirectory::take_work() {
  Work work;
  MutexLock lock(mutex_);
  while (true) {
    Time now = std::chrono::steady_clock::now();
    bool may_tell = now >= try_again_;
    if (is_stopping_) return work;
    work.has_heartbeat = may_tell && now >= next_heartbeat_;
    if (!to_ask_.empty() || work.has_heartbeat || (may_tell && !to_tell_.empty())) break;
    Time next = std::max(next_heartbeat_, try_again_);
    changed_.wait_for(mutex_, std::max(next - now, Time::duration(std::chrono::milliseconds(1))));
  }
  work.asked = take_some(to_ask_);
  if (std::chrono::steady_clock::now() >= try_again_) work.told = take_some(to_tell_);
  return work;
}

void PeerDirectory::run() {
  while (true) {
    Work work = take_work();
    {
      MutexLock lock(mutex_);
      if (is_stopping_) break;
    }
    do_work(work);
    finish(work);
  }
}

void PeerDirectory::finish(const Work& work) {
  MutexLock lock(mutex_);
  num_told_ += work.told.size();
  changed_.notify_all();
}

// What was found out stays, whatever becomes of the telling.
void PeerDirectory::do_work(const Work& work) {
  if (std::chrono::steady_clock::now() < try_again_ || !find_out(work.asked))
    return answer_nothing(work.asked);
  tell(work);
}

void PeerDirectory::tell(const Work& work) {
  Time now = std::chrono::steady_clock::now();
  std::vector<DirectoryCommand> commands;
  if (work.has_heartbeat) {
    commands.push_back(set_command(PeerRecords::node_name(parts_.node),
                                   records_.lease_text(parts_.node, parts_.address),
                                   parts_.options.lease));
  }
  for (const Digest& key : work.told) {
    std::optional<EntrySet> entries = parts_.holdings.entries_of(key);
    if (!entries) continue;
    commands.push_back(set_command(PeerRecords::block_name(key),
                                   records_.holding_text(key, {parts_.node, *entries}),
                                   parts_.options.holding));
  }
  if (commands.empty()) return;
  Result<std::vector<RedisReply>> replies = link_.run(commands);
  if (!replies) return note_down(replies.error().message);
  auto refused = std::ranges::find_if(*replies, &RedisReply::is_error);
  if (refused != replies->end()) return note_down(error_word(*refused));
  if (work.has_heartbeat) next_heartbeat_ = now + parts_.options.lease / 3;
  note_up();
}

bool PeerDirectory::find_out(std::span<const Digest> keys) {
  if (keys.empty()) return true;
  std::vector<DirectoryCommand> commands;
  for (const Digest& key : keys) commands.push_back(get_command(PeerRecords::block_name(key)));
  Result<std::vector<RedisReply>> replies = link_.run(commands);
  if (!replies) {
    note_down(replies.error().message);
    return false;
  }
  Time now = std::chrono::steady_clock::now();
  std::vector<std::optional<PeerHolding>> holdings;
  std::set<PeerNodeId> nodes;
  for (size_t i = 0; i < keys.size(); ++i) {
    const RedisReply& reply = (*replies)[i];
    std::optional<PeerHolding> holding;
    if (reply.kind == RedisReply::Kind::kText)
      holding = records_.parse_holding(keys[i], reply.text);
    if (holding && parts_.index.needs_lease(holding->node, now + parts_.options.lease / 3))
      nodes.insert(holding->node);
    holdings.push_back(std::move(holding));
  }
  if (!find_leases(nodes)) return false;
  for (size_t i = 0; i < keys.size(); ++i) parts_.index.set_holding(keys[i], holdings[i], now);
  return true;
}

// A lease that was read is believed for half of its time: its node may have died meanwhile.
bool PeerDirectory::find_leases(const std::set<PeerNodeId>& nodes) {
  if (nodes.empty()) return true;
  std::vector<DirectoryCommand> commands;
  for (const PeerNodeId& node : nodes)
    commands.push_back(get_command(PeerRecords::node_name(node)));
  Result<std::vector<RedisReply>> replies = link_.run(commands);
  if (!replies) {
    note_down(replies.error().message);
    return false;
  }
  Time until = std::chrono::steady_clock::now() + parts_.options.lease / 2;
  size_t i = 0;
  for (const PeerNodeId& node : nodes) {
    const RedisReply& reply = (*replies)[i++];
    std::optional<std::string> address;
    if (reply.kind == RedisReply::Kind::kText) address = records_.parse_lease(node, reply.text);
    parts_.index.set_lease(node, address, until);
    if (address) parts_.on_node(*address);
  }
  return true;
}

void PeerDirectory::answer_nothing(std::span<const Digest> keys) {
  Time now = std::chrono::steady_clock::now();
  for (const Digest& key : keys) parts_.index.set_holding(key, std::nullopt, now);
}

// A directory that has come (back) may have lost everything; and records end unless told anew.
void PeerDirectory::note_up() {
  Time now = std::chrono::steady_clock::now();
  pause_ = std::chrono::milliseconds(0);
  if (is_up_.exchange(true) && now < next_round_) return;
  next_round_ = now + parts_.options.holding / kRoundsPerHolding;
  for (const Digest& key : parts_.holdings.keys()) publish(key);
}

void PeerDirectory::note_down(const std::string& why) {
  if (is_up_.exchange(false) || pause_.count() == 0)
    spdlog::warn("the directory of peers does not answer ({}); going on without peers", why);
  pause_ = pause_.count() == 0 ? parts_.options.first_pause
                               : std::min(2 * pause_, parts_.options.longest_pause);
  try_again_ = std::chrono::steady_clock::now() + pause_;
  next_heartbeat_ = try_again_;
}

}  // namespace droidspeak
