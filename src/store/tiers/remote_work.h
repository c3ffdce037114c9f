// What the parts of the remote tier hand to each other.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "redis/slots.h"
#include "redis/tls.h"
#include "store/remote_options.h"
#include "store/tiers/remote_index.h"
#include "store/tiers/remote_tables.h"
#include "store/tiers/remote_value.h"
#include "store/tiers/tier.h"

namespace droidspeak {

// A command that a cluster has sent from one server to another so often is given up.
inline constexpr int kMostRedirects = 4;

// One value to be read, and where its entries go.
struct ValueRead {
  struct Wanted {
    size_t index = 0;  // for the sink
    EntryId id{};
  };

  std::string name;
  Digest key;
  std::vector<Wanted> wanted;
  std::shared_ptr<ReadSink> sink;
  uint64_t bytes = 0;  // of the entries, decoded
  int num_redirects = 0;
  bool is_asking = false;  // ASK: behind an ASKING of its own

  void fail() const {
    for (const Wanted& entry : wanted) sink->done(entry.index, nullptr);
  }
};

// Whether some values of a block are there.
struct ValueQuestion {
  RemoteQuestion question;
  int num_redirects = 0;
  bool is_asking = false;
};

struct RemoteCounters {
  std::atomic<uint64_t> hits, misses, damaged;
  std::atomic<uint64_t> bytes_read, bytes_written;
  std::atomic<uint64_t> write_errors, dropped_writes, read_nanoseconds;
  std::atomic<uint64_t> num_steps;  // that were taken by writing and closing
};

// What all servers of a tier share. Outlives them.
struct RemoteParts {
  const RemoteOptions& options;
  const TlsClient* tls;  // null: plain
  const ValueSeal& seal;
  const BlockEncoding& encoding;
  RemoteIndex& index;
  RemoteTables& tables;
  RemoteCounters& counters;
  std::function<void(ValueRead, const RedisRedirect&)> redirect_read;
  std::function<void(ValueQuestion, const RedisRedirect&)> redirect_question;
  std::function<void(const std::vector<RedisSlotRange>&)> learn_slots;
  std::function<void()> on_answer;  // of a question
  std::function<void()> on_lost;    // a server
  // Of slots: it is down, and another may have taken its place, or nobody has them.
  std::function<bool()> misses_an_owner;
};

}  // namespace droidspeak
