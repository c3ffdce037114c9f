// One server of the remote tier: connections with a thread each for reads, one for questions, which
// also finds out whether the server is there. A server that does not answer is left alone for a
// while, and longer each time; meanwhile all that it is asked is a miss at once. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/leavable_threads.h"
#include "base/link_meter.h"
#include "base/mutex.h"
#include "redis/connection.h"
#include "store/tiers/remote_work.h"

namespace droidspeak {

// Shared with its threads: one that has left the cluster goes when they have ended.
class RemoteNode : public std::enable_shared_from_this<RemoteNode> {
 public:
  RemoteNode(RedisAddress address, const RemoteParts& parts)
      : address_(std::move(address)), parts_(parts) {}

  RemoteNode(const RemoteNode&) = delete;
  RemoteNode& operator=(const RemoteNode&) = delete;

  // False: there are no threads to be had; it is closed then.
  bool start(LeavableThreads& threads, const std::shared_ptr<const void>& owner);
  // Ends its threads, as soon as they look; what waits is a miss.
  void close();

  const RedisAddress& address() const { return address_; }

  // Whether threads of it have not ended yet.
  bool has_threads() const { return num_threads_.load() > 0; }

  bool is_up() const { return is_up_.load(std::memory_order_relaxed); }

  // Also false when it has not been tried yet.
  bool has_failed() const { return has_failed_.load(std::memory_order_relaxed); }

  void read(ValueRead read);
  void ask(ValueQuestion question);
  // The slots may have changed: it is asked for them soon.
  void refresh_slots();

  // A connection for the caller's thread; lost() and close() end what it waits for.
  class Connection;
  Result<std::unique_ptr<Connection>> connect(std::chrono::milliseconds stall);
  // The server does not do what it should: it is left alone for a while.
  void lost(const Error& error);

  // What the link carries, in whichever form.
  double carried_per_second() const { return meter_.carried_per_second(); }

  bool is_closed() const;
  LinkReport report() const;

 private:
  friend class Connection;

  void run_readers();
  bool read_values(RedisConnection& connection, ValueRead first);
  std::optional<ValueRead> take_read();
  std::optional<ValueRead> try_take_read();
  void give_up(ValueRead& read);
  void take_back(std::deque<ValueRead> reads);

  void run_control();
  Result<void> greet(RedisConnection& connection);
  Result<void> read_slots(RedisConnection& connection);
  Result<void> measure(RedisConnection& connection);
  Result<void> serve(RedisConnection& connection);
  Result<void> answer(RedisConnection& connection, std::deque<ValueQuestion> questions);
  Result<void> read_answer(RedisConnection& connection, ValueQuestion& question);
  Result<void> ping(RedisConnection& connection);
  void set_up();
  void drop_questions();
  Result<void> exchange_tables(RedisConnection& connection);
  bool owns(const std::string& name) const;
  bool has_no_slots() const;
  void note_first_look(double carried_per_second);
  std::string name_for_measuring() const;

  const RedisAddress address_;
  const RemoteParts& parts_;
  LinkMeter meter_;
  std::atomic<bool> is_up_ = false;
  std::atomic<bool> has_failed_ = false;
  std::atomic<uint64_t> num_failures_ = 0;
  std::atomic<uint64_t> num_losses_ = 0;
  std::atomic<int> num_threads_ = 0;

  mutable Mutex mutex_;
  Condition changed_;
  std::deque<ValueRead> reads_ GUARDED_BY(mutex_);
  std::deque<ValueQuestion> questions_ GUARDED_BY(mutex_);
  std::set<RedisConnection*> open_ GUARDED_BY(mutex_);
  bool is_in_cluster_ GUARDED_BY(mutex_) = false;
  std::vector<RedisSlotRange> own_slots_ GUARDED_BY(mutex_);  // of a cluster
  bool wants_slots_ GUARDED_BY(mutex_) = false;
  bool is_closing_ GUARDED_BY(mutex_) = false;
  bool is_counted_ GUARDED_BY(mutex_) = false;  // the failure that has ended the last time up
  bool is_said_ GUARDED_BY(mutex_) = true;      // the log knows of it
  std::optional<std::chrono::steady_clock::time_point> warned_at_ GUARDED_BY(mutex_);
};

class RemoteNode::Connection {
 public:
  Connection(RemoteNode& node, std::unique_ptr<RedisConnection> connection);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  RedisConnection& operator*() { return *connection_; }

  RedisConnection* operator->() { return connection_.get(); }

  // Of no use any more once the server was lost, or has closed it while nothing was asked.
  bool is_usable() const;

 private:
  RemoteNode& node_;
  const uint64_t num_losses_;  // of the node when it was made
  std::unique_ptr<RedisConnection> connection_;
};

}  // namespace droidspeak
