// For tests: engines that share through Redis.
#pragma once

#include <chrono>
#include <vector>

#include "base/test_wait.h"
#include "engine/engine.h"
#include "engine/shared_family.h"
#include "redis/redis_process.h"

namespace droidspeak {

inline EngineOptions remote_engine(const RedisServers& servers,
                                   RemoteFormat format = RemoteFormat::kRaw) {
  EngineOptions options = tiny_options();
  options.store.remote = {
      .servers = servers, .secret = std::vector<std::byte>(32, std::byte{7}), .format = format};
  options.store.remote.first_pause = std::chrono::milliseconds(20);
  // Computing is dear and links are not: what is chosen does not depend on this machine's load.
  options.fixed_costs->token_seconds = 1e-1;
  return options;
}

inline bool is_up(const Engine& engine) {
  std::vector<LinkReport> links = engine.metrics().store.of(Tier::kRemote).links;
  return !links.empty() && links[0].is_up;
}

inline void wait_for_link(const Engine& engine) {
  wait_until([&] { return is_up(engine); }, "the link to Redis");
}

// The caches of the prompt, read by `base`, are with the server when this returns.
inline void read_with_one_engine(SharedFamily& family,
                                 const EngineOptions& options,
                                 const std::vector<int32_t>& prompt) {
  Engine engine(family.ops(), family.file(), options);
  wait_for_link(engine);
  generate(engine, {.model = "base", .prompt = prompt, .max_tokens = 1});
}

}  // namespace droidspeak
