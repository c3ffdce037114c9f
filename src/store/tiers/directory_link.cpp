#include "store/tiers/directory_link.h"

#include <algorithm>
#include <utility>

#include "redis/reply.h"
#include "redis/tls.h"

namespace droidspeak {
namespace {

constexpr int kMaxHops = 4;

std::unique_ptr<TlsClient> make_tls(const RedisServers& servers) {
  if (servers.transport == RedisTransport::kPlain) return nullptr;
  return std::make_unique<TlsClient>(servers.ca_file);
}

}  // namespace

DirectoryLink::DirectoryLink(RedisServers servers, std::chrono::milliseconds stall)
    : servers_(std::move(servers)), stall_(stall), tls_(make_tls(servers_)) {}

Result<RedisConnection*> DirectoryLink::connection_to(const RedisAddress& address) {
  auto found = connections_.find(address);
  if (found != connections_.end()) return found->second.get();
  Result<std::unique_ptr<RedisConnection>> opened =
      RedisConnection::open(address, servers_, tls_.get(), stall_);
  if (!opened) return opened.error();
  return connections_.emplace(address, std::move(*opened)).first->second.get();
}

// Before a server has said where a slot is, any one will do: it says so.
Result<RedisAddress> DirectoryLink::address_of(const std::string& key) {
  auto slot = slots_.find(redis_slot(key));
  if (slot != slots_.end()) return slot->second;
  Error problem{ErrorCode::kUnavailable, "no server is named"};
  for (const RedisAddress& address : servers_.addresses) {
    Result<RedisConnection*> connection = connection_to(address);
    if (connection) return address;
    problem = connection.error();
  }
  return problem;
}

Result<void> DirectoryLink::run_round(std::span<const DirectoryCommand> commands,
                                      std::vector<std::optional<Target>>& targets,
                                      std::vector<RedisReply>& replies) {
  std::map<RedisAddress, std::vector<size_t>> by_server;
  for (size_t i = 0; i < commands.size(); ++i) {
    if (targets[i]) by_server[targets[i]->address].push_back(i);
  }
  for (const auto& [address, indices] : by_server) {
    std::string text;
    for (size_t i : indices) {
      if (targets[i]->is_asking) append_command(text, {"ASKING"});
      text += commands[i].text;
    }
    Result<RedisConnection*> connection = connection_to(address);
    if (!connection) return connection.error();
    if (Result<void> sent = (*connection)->send(text); !sent) return sent;
    for (size_t i : indices) {
      for (int left = targets[i]->is_asking ? 2 : 1; left > 0; --left) {
        Result<RedisReply> reply = (*connection)->read_reply();
        if (!reply) return reply.error();
        replies[i] = std::move(*reply);
      }
      targets[i].reset();
      if (!replies[i].is_error()) continue;
      std::optional<RedisRedirect> redirect = parse_redirect(replies[i].text, address);
      if (!redirect) continue;
      bool is_asking = redirect->kind == RedisRedirect::Kind::kAsk;
      if (!is_asking) slots_[redirect->slot] = redirect->address;
      targets[i] = Target{redirect->address, is_asking};
    }
  }
  return {};
}

Result<std::vector<RedisReply>> DirectoryLink::run(std::span<const DirectoryCommand> commands) {
  std::vector<std::optional<Target>> targets(commands.size());
  std::vector<RedisReply> replies(commands.size());
  auto fail = [this](const Error& problem) {
    connections_.clear();
    slots_.clear();
    return problem;
  };
  for (size_t i = 0; i < commands.size(); ++i) {
    Result<RedisAddress> address = address_of(commands[i].key);
    if (!address) return fail(address.error());
    targets[i] = Target{std::move(*address), false};
  }
  auto is_left = [&] {
    return std::any_of(targets.begin(), targets.end(), [](const auto& t) { return t.has_value(); });
  };
  for (int hop = 0; hop < kMaxHops && is_left(); ++hop) {
    if (Result<void> done = run_round(commands, targets, replies); !done) return fail(done.error());
  }
  return replies;
}

}  // namespace droidspeak
