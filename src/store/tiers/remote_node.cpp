#include "store/tiers/remote_node.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "store/tiers/value_reader.h"

namespace droidspeak {
namespace {

// Values asked for ahead of their replies on one connection: the link never waits for a question.
constexpr size_t kMostAhead = 6;
constexpr std::chrono::minutes kWarnEvery{1};

}  // namespace

RemoteNode::Connection::Connection(RemoteNode& node, std::unique_ptr<RedisConnection> connection)
    : node_(node), num_losses_(node.num_losses_), connection_(std::move(connection)) {
  MutexLock lock(node_.mutex_);
  node_.open_.insert(connection_.get());
  if (node_.is_closing_) connection_->shut_down();
}

RemoteNode::Connection::~Connection() {
  MutexLock lock(node_.mutex_);
  node_.open_.erase(connection_.get());
}

bool RemoteNode::Connection::is_usable() const {
  return num_losses_ == node_.num_losses_ && connection_->is_quiet();
}

Result<std::unique_ptr<RemoteNode::Connection>> RemoteNode::connect(
    std::chrono::milliseconds stall) {
  auto is_wanted = [this, losses = num_losses_.load()] {
    MutexLock lock(mutex_);
    return !is_closing_ && losses == num_losses_;
  };
  Result<std::unique_ptr<RedisConnection>> opened = RedisConnection::open(
      address_, parts_.options.servers, parts_.tls, StreamLimits{stall, is_wanted});
  if (!opened) return opened.error();
  return std::make_unique<Connection>(*this, std::move(*opened));
}

bool RemoteNode::start(LeavableThreads& threads, const std::shared_ptr<const void>& owner) {
  auto start_one = [&](void (RemoteNode::*body)()) {
    ++num_threads_;
    bool is_running = threads.start(owner, [self = shared_from_this(), body] {
      (*self.*body)();
      --self->num_threads_;
    });
    if (!is_running) --num_threads_;
    return is_running;
  };
  bool is_started = start_one(&RemoteNode::run_control);
  for (size_t i = 0; is_started && i < parts_.options.connections; ++i)
    is_started = start_one(&RemoteNode::run_readers);
  if (!is_started) close();
  return is_started;
}

void RemoteNode::close() {
  std::deque<ValueRead> dropped;
  {
    MutexLock lock(mutex_);
    is_closing_ = true;
    is_up_ = false;
    dropped.swap(reads_);
    for (RedisConnection* connection : open_) connection->shut_down();
    changed_.notify_all();
  }
  for (ValueRead& read : dropped) give_up(read);
  drop_questions();
}

void RemoteNode::read(ValueRead read) {
  {
    MutexLock lock(mutex_);
    if (is_up_ && !is_closing_) {
      meter_.begin(read.bytes, std::chrono::steady_clock::now());
      reads_.push_back(std::move(read));
      changed_.notify_all();
      return;
    }
  }
  parts_.counters.misses.fetch_add(read.wanted.size(), std::memory_order_relaxed);
  read.fail();
}

void RemoteNode::give_up(ValueRead& read) {
  meter_.give_up(read.bytes);
  parts_.counters.misses.fetch_add(read.wanted.size(), std::memory_order_relaxed);
  read.fail();
}

// All connections at once: those that still wait would wait in vain.
void RemoteNode::lost(const Error& error) {
  std::deque<ValueRead> dropped;
  bool was_up = false;
  bool is_counted = false;
  bool is_news = false;
  {
    MutexLock lock(mutex_);
    was_up = is_up_.exchange(false);
    has_failed_ = true;
    if (is_closing_) return;
    auto now = std::chrono::steady_clock::now();
    is_counted = std::exchange(is_counted_, true);
    is_news = !warned_at_ || (!is_counted && now - *warned_at_ >= kWarnEvery);
    if (is_news) warned_at_ = now;
    is_said_ |= is_news;
    ++num_losses_;
    dropped.swap(reads_);
    for (RedisConnection* connection : open_) connection->shut_down();
    changed_.notify_all();
  }
  if (was_up) parts_.on_lost();
  if (!is_counted) num_failures_.fetch_add(1, std::memory_order_relaxed);
  if (is_news) {
    spdlog::warn("remote cache {}: {}; going on without it until it comes back", address_.text(),
                 error.message);
  }
  for (ValueRead& read : dropped) give_up(read);
  drop_questions();
}

std::optional<ValueRead> RemoteNode::take_read() {
  MutexLock lock(mutex_);
  while (reads_.empty() && !is_closing_) changed_.wait(mutex_);
  if (is_closing_) return std::nullopt;
  std::optional<ValueRead> read = std::move(reads_.front());
  reads_.pop_front();
  return read;
}

std::optional<ValueRead> RemoteNode::try_take_read() {
  MutexLock lock(mutex_);
  if (reads_.empty()) return std::nullopt;
  std::optional<ValueRead> read = std::move(reads_.front());
  reads_.pop_front();
  return read;
}

void RemoteNode::run_readers() {
  std::unique_ptr<Connection> connection;
  while (std::optional<ValueRead> read = take_read()) {
    if (!read->sink->is_wanted()) {
      give_up(*read);
      continue;
    }
    if (connection && !connection->is_usable()) connection.reset();
    if (!connection) {
      Result<std::unique_ptr<Connection>> opened = connect(parts_.options.stall);
      if (!opened) {
        lost(opened.error());
        give_up(*read);
        continue;
      }
      connection = std::move(*opened);
    }
    if (!read_values(**connection, std::move(*read))) connection.reset();
  }
}

// False when the connection is of no use any more.
bool RemoteNode::read_values(RedisConnection& connection, ValueRead first) {
  ValueReader reader(parts_);
  std::deque<ValueRead> sent;
  std::string commands;
  auto add = [&](ValueRead read) {
    if (!read.sink->is_wanted()) return give_up(read);
    if (read.is_asking) append_command(commands, {"ASKING"});
    append_command(commands, {"GET", read.name});
    sent.push_back(std::move(read));
  };
  add(std::move(first));
  Result<void> state;
  while (state && !sent.empty()) {
    while (sent.size() < kMostAhead) {
      std::optional<ValueRead> next = try_take_read();
      if (!next) break;
      add(std::move(*next));
    }
    if (!commands.empty()) state = connection.send(commands);
    commands.clear();
    if (!state) break;
    ValueRead& front = sent.front();
    uint64_t bytes = front.bytes;
    connection.set_wanted([sink = front.sink] { return sink->is_wanted(); });
    Result<ValueReader::Outcome> outcome = reader.read_reply(connection, address_, front);
    connection.set_wanted({});
    if (!outcome) {
      state = outcome.error();
      break;
    }
    if (*outcome == ValueReader::Outcome::kRead) {
      meter_.arrive(bytes, reader.value_bytes(), std::chrono::steady_clock::now());
    } else {
      meter_.give_up(bytes);
    }
    sent.pop_front();
  }
  if (state) return true;
  if (state.error().code == ErrorCode::kCancelled) {
    give_up(sent.front());
    sent.pop_front();
    take_back(std::move(sent));
    return false;
  }
  // What is failed next is not looked for here again.
  lost(state.error());
  for (ValueRead& read : sent) give_up(read);
  return false;
}

// They were sent over a connection that has ended since.
void RemoteNode::take_back(std::deque<ValueRead> reads) {
  {
    MutexLock lock(mutex_);
    if (is_up_ && !is_closing_) {
      for (; !reads.empty(); reads.pop_back()) reads_.push_front(std::move(reads.back()));
      changed_.notify_all();
    }
  }
  for (ValueRead& read : reads) give_up(read);
}

bool RemoteNode::is_closed() const {
  MutexLock lock(mutex_);
  return is_closing_;
}

LinkReport RemoteNode::report() const {
  return {.address = address_.text(),
          .is_up = is_up(),
          .round_trip_seconds = meter_.round_trip_seconds(),
          .bytes_per_second = meter_.bytes_per_second(),
          .queued_bytes = meter_.queued_bytes(),
          .failures = num_failures_.load(std::memory_order_relaxed)};
}

}  // namespace droidspeak
