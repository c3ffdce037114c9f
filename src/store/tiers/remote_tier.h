// Blocks in Redis or Valkey, one server or a cluster, shared by all processes that serve the
// family. Eviction is the server's. What is there is asked for before a context is planned; values
// are read on threads of their own, straight into host memory, and written by one thread behind a
// bounded queue. Nobody waits for a server that does not answer; see RemoteNode.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/leavable_threads.h"
#include "base/mutex.h"
#include "redis/slots.h"
#include "store/tiers/remote_nodes.h"
#include "store/tiers/remote_work.h"
#include "store/tiers/remote_writer.h"
#include "store/tiers/tier.h"
#include "store/tiers/write_queue.h"

namespace droidspeak {

struct RemoteStorage {
  uint64_t queue_bytes = 0;  // of what waits to be written
  CodedModel coded_model{};  // whose K/V is coded
};

class RemoteTier final : public CacheTier {
 public:
  // Throws Failure when the options cannot be used: no secret, an unreadable CA file, a format that
  // does not fit. A server that is not there is found when it comes.
  RemoteTier(const RemoteOptions& options,
             const RemoteStorage& storage,
             const BlockEncoding& sizes,
             const Clock& clock);
  ~RemoteTier() override;

  Tier tier() const override { return Tier::kRemote; }

  ReadThread read_thread() const override { return ReadThread::kOwn; }

  void start(std::shared_ptr<const void> owner) override;
  void close(std::chrono::milliseconds stall) override;

  void look_up(std::span<const Digest> keys,
               std::span<const EntryId> wanted,
               std::span<Presence> found) const override;
  void ask(std::span<const Digest> keys, std::span<const EntryId> wanted) override;
  void wait_for_answers(std::span<const Digest> keys,
                        std::span<const EntryId> wanted,
                        std::chrono::steady_clock::time_point until) override;
  std::optional<PinnedEntry> pin(const Digest& key, EntryId id) const override;
  void read(std::vector<EntryRead> entries, std::shared_ptr<ReadSink> sink) override;

  bool has_room_to_write(uint64_t bytes) const override;
  void write(const BlockLabel& label, std::vector<PendingEntry> entries) override;
  void count_dropped_write() override;

  void touch(const Digest& /*key*/) override {}  // reads are uses, and the server counts them

  // Also at the server, where this process knows that it is there.
  void erase(const Digest& key) override;
  // What this process has written of it, at the server too.
  void erase_owned_by(const Digest& owner) override;
  void clear() override;
  // As long as things move, and 10 s at most.
  void drain() override;

  TierReport report() const override;

 private:
  using Node = RemoteNodes::Node;

  void redirect_read(ValueRead read, const RedisRedirect& redirect);
  void redirect_question(ValueQuestion question, const RedisRedirect& redirect);
  void on_answer();
  void on_lost();
  void run_writer();
  uint64_t bytes_of(EntryId id) const;

  const RemoteOptions options_;
  const BlockEncoding encoding_;
  const std::unique_ptr<TlsClient> tls_;
  const ValueSeal seal_;
  RemoteIndex index_;
  RemoteTables tables_;
  RemoteCounters counters_{};
  RemoteParts parts_;

  LeavableThreads threads_;
  RemoteNodes nodes_;
  WriteQueue queue_;
  RemoteWriter writer_;  // its connections go before the servers

  Mutex answers_mutex_;
  Condition answered_;  // the index has the answer to a question
};

}  // namespace droidspeak
