// The memory of the other nodes that serve the family, and this node's as they read it. What this
// process puts into its host memory others may read from there; a directory in Redis says who has
// what. Entries travel as they lie in host memory. A node that is gone, slow or does not tell the
// truth costs time; see PeerClient.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "peer/peer_client.h"
#include "peer/peer_server.h"
#include "store/peer_options.h"
#include "store/tiers/block_writer.h"
#include "store/tiers/host_tier.h"
#include "store/tiers/peer_directory.h"
#include "store/tiers/peer_holdings.h"
#include "store/tiers/peer_index.h"
#include "store/tiers/peer_meetings.h"
#include "store/tiers/tier.h"

namespace droidspeak {

class PeerTier final : public CacheTier {
 public:
  // `host` outlives this. Throws Failure when the options cannot be used: no secret, no directory,
  // an address that cannot be listened on.
  PeerTier(const PeerOptions& options, const HostTier& host, const BlockEncoding& sizes);
  ~PeerTier() override;

  Tier tier() const override { return Tier::kPeer; }

  ReadThread read_thread() const override { return ReadThread::kOwn; }

  void close(std::chrono::milliseconds stall) override;

  void look_up(std::span<const Digest> keys,
               std::span<const EntryId> wanted,
               std::span<Presence> found) const override;
  void ask(std::span<const Digest> keys, std::span<const EntryId> wanted) override;
  void wait_for_answers(std::span<const Digest> keys,
                        std::span<const EntryId> wanted,
                        std::chrono::steady_clock::time_point until) override;

  std::optional<PinnedEntry> pin(const Digest& /*key*/, EntryId /*id*/) const override {
    return std::nullopt;
  }

  void read(std::vector<EntryRead> entries, std::shared_ptr<ReadSink> sink) override;

  // What is put stays in host memory; nothing else is kept for it.
  bool has_room_to_write(uint64_t /*bytes*/) const override { return false; }

  // Tells the directory.
  void write(const BlockLabel& label, std::vector<PendingEntry> entries) override;

  void count_dropped_write() override {}

  void touch(const Digest& /*key*/) override {}

  // Others do not get it from here any more. What they have already they keep.
  void erase(const Digest& key) override;
  void erase_owned_by(const Digest& owner) override;
  void clear() override;
  void drain() override;

  // bytes_written: what others have read from here.
  TierReport report() const override;

  std::optional<LinkCost> cost_of(const TierReport& report,
                                  std::span<const Digest> keys) const override;

  // Where others reach this node.
  std::string address() const { return server_->address(); }

 private:
  class Reading;

  std::optional<PeerEntry> find_for_others(const PeerKey& key) const;
  void meet(const std::string& address);

  const PeerOptions options_;
  const HostTier& host_;
  const BlockEncoding sizes_;
  PeerHoldings holdings_;
  PeerIndex index_;
  const std::shared_ptr<PeerMeetings> meetings_ = std::make_shared<PeerMeetings>();
  std::atomic<uint64_t> num_hits_ = 0;
  std::atomic<uint64_t> num_misses_ = 0;
  std::atomic<uint64_t> num_bytes_ = 0;
  // In the order in which they stop: nobody asks, nobody reads, nobody is served.
  std::unique_ptr<PeerServer> server_;
  std::unique_ptr<PeerClient> client_;
  std::unique_ptr<PeerDirectory> directory_;
};

// Throws Failure that names the flag to set when the options cannot be used together.
void check_peer_options(const PeerOptions& options);

}  // namespace droidspeak
