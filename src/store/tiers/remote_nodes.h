// The servers of a remote tier, and which of them has which slots of a cluster. Servers are added
// as the cluster names them, and go when they have no slots any more and no redirect has named them
// of late; those of the options stay. Whatever a cluster says, there are so many servers at most,
// with those that have not ended yet. Thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/leavable_threads.h"
#include "base/mutex.h"
#include "redis/slots.h"
#include "store/tiers/remote_node.h"
#include "store/tiers/remote_work.h"

namespace droidspeak {

class RemoteNodes {
 public:
  using Node = std::shared_ptr<RemoteNode>;

  static constexpr size_t kMostNodes = 64;
  // Of these, known by redirects alone: a slot moves between few servers at a time.
  static constexpr size_t kMostNamed = 8;
  static constexpr std::chrono::seconds kNamedLasts{60};

  // Both outlive this.
  RemoteNodes(const RemoteParts& parts, LeavableThreads& threads)
      : parts_(parts), threads_(threads) {}

  // Those of the options. `owner`: see CacheTier::start().
  void start(std::shared_ptr<const void> owner);
  // No more are added, and what those there are do ends soon.
  void close();

  // Null: nobody has the name's slot.
  Node node_of(const std::string& name) const;
  // Where a redirect points to. Null: there are too many.
  Node follow(const RedisRedirect& redirect);

  void learn_slots(const std::vector<RedisSlotRange>& ranges);
  // All of a cluster are asked for their slots soon.
  void refresh_slots() const;
  // Of slots of a cluster: it is not up, or there is none.
  bool misses_an_owner() const;

  bool is_any_up() const;
  std::vector<LinkReport> report() const;

 private:
  using Time = std::chrono::steady_clock::time_point;

  struct Server {
    Node node;
    std::optional<Time> named{};  // by a redirect, the last time
  };

  // Null: there are too many.
  Server* get(const RedisAddress& address) REQUIRES(mutex_);
  bool stays(const RedisAddress& address, const Server& server, Time now) const REQUIRES(mutex_);
  size_t num_named() const REQUIRES(mutex_);
  std::vector<Node> take_those_that_left() REQUIRES(mutex_);

  const RemoteParts& parts_;
  LeavableThreads& threads_;

  mutable Mutex mutex_;
  std::shared_ptr<const void> owner_ GUARDED_BY(mutex_);  // from start() to close()
  std::map<RedisAddress, Server> servers_ GUARDED_BY(mutex_);
  std::vector<Node> leaving_ GUARDED_BY(mutex_);  // that have threads still
  std::vector<Node> by_slot_ GUARDED_BY(mutex_);  // empty: no cluster
  std::vector<Node> owners_ GUARDED_BY(mutex_);   // of by_slot_, each once
  bool has_free_slots_ GUARDED_BY(mutex_) = false;
  Node only_ GUARDED_BY(mutex_);  // without a cluster
};

}  // namespace droidspeak
