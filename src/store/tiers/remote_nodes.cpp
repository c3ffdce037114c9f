#include "store/tiers/remote_nodes.h"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

namespace droidspeak {

void RemoteNodes::start(std::shared_ptr<const void> owner) {
  MutexLock lock(mutex_);
  owner_ = std::move(owner);
  for (const RedisAddress& address : parts_.options.servers.addresses) {
    Server* server = get(address);
    if (server != nullptr && only_ == nullptr) only_ = server->node;
  }
}

void RemoteNodes::close() {
  MutexLock lock(mutex_);
  owner_.reset();
  for (const auto& [address, server] : servers_) server.node->close();
}

RemoteNodes::Server* RemoteNodes::get(const RedisAddress& address) {
  auto found = servers_.find(address);
  if (found != servers_.end()) return &found->second;
  std::erase_if(leaving_, [](const Node& node) { return !node->has_threads(); });
  if (owner_ == nullptr || servers_.size() + leaving_.size() >= kMostNodes) return nullptr;
  // It stays although it may not have all its threads: the others use it until they end.
  Server& server = servers_[address];
  server.node = std::make_shared<RemoteNode>(address, parts_);
  if (!server.node->start(threads_, owner_))
    spdlog::warn("remote cache: no threads for another server");
  return &server;
}

RemoteNodes::Node RemoteNodes::node_of(const std::string& name) const {
  MutexLock lock(mutex_);
  return by_slot_.empty() ? only_ : by_slot_[redis_slot(name)];
}

RemoteNodes::Node RemoteNodes::follow(const RedisRedirect& redirect) {
  std::vector<Node> left;
  Node node;
  {
    MutexLock lock(mutex_);
    bool is_known = servers_.contains(redirect.address);
    // Where slots are not told, redirects are all there is.
    const size_t most = by_slot_.empty() ? kMostNodes : kMostNamed;
    if (!is_known && num_named() >= most) left = take_those_that_left();
    if (is_known || num_named() < most) {
      Server* server = get(redirect.address);
      if (server != nullptr) {
        server->named = std::chrono::steady_clock::now();
        node = server->node;
      }
    }
  }
  for (const Node& other : left) other->close();
  return node;
}

size_t RemoteNodes::num_named() const {
  size_t count = 0;
  for (const auto& [address, server] : servers_) {
    if (server.named && std::ranges::count(owners_, server.node) == 0) ++count;
  }
  return count;
}

void RemoteNodes::learn_slots(const std::vector<RedisSlotRange>& ranges) {
  std::vector<Node> left;
  {
    MutexLock lock(mutex_);
    by_slot_.assign(kRedisSlots, nullptr);
    owners_.clear();
    for (const RedisSlotRange& range : ranges) {
      Server* server = get(range.master);
      if (server == nullptr) continue;
      std::fill(by_slot_.begin() + range.first, by_slot_.begin() + range.last + 1, server->node);
      if (std::ranges::count(owners_, server->node) == 0) owners_.push_back(server->node);
    }
    has_free_slots_ = std::ranges::count(by_slot_, nullptr) > 0;
    left = take_those_that_left();
  }
  for (const Node& node : left) node->close();
}

bool RemoteNodes::stays(const RedisAddress& address, const Server& server, Time now) const {
  return std::ranges::count(owners_, server.node) > 0 ||
         std::ranges::count(parts_.options.servers.addresses, address) > 0 ||
         (server.named && now - *server.named < kNamedLasts);
}

// A server without slots is asked for nothing, unless slots are on their way to it; should it get
// some, it is met again.
std::vector<RemoteNodes::Node> RemoteNodes::take_those_that_left() {
  std::vector<Node> left;
  std::vector<std::string> names;
  auto now = std::chrono::steady_clock::now();
  for (auto item = servers_.begin(); item != servers_.end();) {
    if (stays(item->first, item->second, now)) {
      ++item;
      continue;
    }
    names.push_back(item->first.text());
    left.push_back(item->second.node);
    item = servers_.erase(item);
  }
  leaving_.insert(leaving_.end(), left.begin(), left.end());
  if (!left.empty())
    spdlog::info("remote cache: no longer in the cluster: {}", fmt::join(names, ", "));
  return left;
}

void RemoteNodes::refresh_slots() const {
  MutexLock lock(mutex_);
  if (servers_.size() < 2) return;
  for (const auto& [address, server] : servers_) server.node->refresh_slots();
}

bool RemoteNodes::misses_an_owner() const {
  MutexLock lock(mutex_);
  return has_free_slots_ ||
         std::ranges::any_of(owners_, [](const Node& node) { return !node->is_up(); });
}

bool RemoteNodes::is_any_up() const {
  MutexLock lock(mutex_);
  return std::ranges::any_of(servers_, [](const auto& item) { return item.second.node->is_up(); });
}

std::vector<LinkReport> RemoteNodes::report() const {
  MutexLock lock(mutex_);
  std::vector<LinkReport> links;
  for (const auto& [address, server] : servers_) links.push_back(server.node->report());
  return links;
}

}  // namespace droidspeak
