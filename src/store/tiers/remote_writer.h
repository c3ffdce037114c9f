// Writes values to the servers of the remote tier, many ahead of their replies. Used by one thread.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "store/tiers/remote_node.h"
#include "store/tiers/remote_work.h"
#include "store/tiers/write_queue.h"

namespace droidspeak {

class RemoteWriter {
 public:
  using Node = std::shared_ptr<RemoteNode>;
  // Which server has a value; null: none is there.
  using FindNode = std::function<Node(const std::string& name)>;
  // The server that a redirect names.
  using FollowRedirect = std::function<Node(const RedisRedirect& redirect)>;

  RemoteWriter(const RemoteParts& parts, FindNode find_node, FollowRedirect follow)
      : parts_(parts), find_node_(std::move(find_node)), follow_(std::move(follow)) {}

  void remove(std::span<const std::string> names);
  // Coding takes time: not when much waits.
  enum class Haste { kNo, kYes };
  void write(std::span<const std::shared_ptr<PendingWrite>> batch, Haste haste);

  // Writes are refused (no memory, read-only): nothing is tried before this.
  std::chrono::steady_clock::time_point rests_until() const {
    return rests_until_.load(std::memory_order_relaxed);
  }

 private:
  struct Job {
    PendingWrite part{};  // the entries of one value
    std::unique_ptr<SealedValue> value{};
    std::shared_ptr<PendingWrite> whole{};
    int num_redirects = 0;
    bool is_asking = false;
  };

  using Jobs = std::vector<std::unique_ptr<Job>>;

  void remove(const Node& node, std::span<const std::string_view> names);
  BlockEncoding encoding_for(const Job& job,
                             const std::shared_ptr<const CodecTables>& tables) const;
  Jobs make_jobs(std::span<const std::shared_ptr<PendingWrite>> batch) const;
  void send(const Node& node, Jobs jobs);
  Result<void> send(RedisConnection& connection, const Jobs& jobs) const;
  // Those that were sent elsewhere by the cluster stay in `jobs`.
  Result<void> read_replies(RedisConnection& connection, const RemoteNode& node, Jobs& jobs);
  void finish(Job& job, const RedisReply& reply);
  void route(Jobs jobs);
  RedisConnection* connection_to(const Node& node);
  void drop(const Jobs& jobs);

  const RemoteParts& parts_;
  const FindNode find_node_;
  const FollowRedirect follow_;
  std::map<Node, std::unique_ptr<RemoteNode::Connection>> connections_;
  std::vector<std::string> erased_;  // names of values that were erased while they were written
  std::chrono::steady_clock::time_point warns_from_{};
  std::atomic<std::chrono::steady_clock::time_point> rests_until_{};
};

}  // namespace droidspeak
