// Which server of a cluster has a key: 16,384 slots, by CRC16 of the key or of what stands between
// its first { and the next }.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "redis/address.h"
#include "redis/reply.h"

namespace droidspeak {

inline constexpr size_t kRedisSlots = 16384;

uint16_t redis_slot(std::string_view key);

// "MOVED 3999 127.0.0.1:6381": it has gone there for good; "ASK ...": for this one command.
struct RedisRedirect {
  enum class Kind { kMoved, kAsk } kind = Kind::kMoved;
  uint16_t slot = 0;
  RedisAddress address;
};

// Nothing for another error, or one that cannot be understood. An empty host means that of the
// server that said it.
std::optional<RedisRedirect> parse_redirect(std::string_view error, const RedisAddress& from);

struct RedisSlotRange {
  uint16_t first = 0;
  uint16_t last = 0;  // inclusive
  RedisAddress master;
};

// The answer to CLUSTER SLOTS; an error when it is not one.
Result<std::vector<RedisSlotRange>> parse_cluster_slots(const RedisReply& reply,
                                                        const RedisAddress& from);

}  // namespace droidspeak
