// A thread that keeps this node's lease and records in Redis, and asks there for those of others.
// Nobody waits for a Redis that does not answer: questions are then answered with a miss, and what
// is to be told is told when it comes back.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "store/peer_options.h"
#include "store/tiers/directory_link.h"
#include "store/tiers/peer_holdings.h"
#include "store/tiers/peer_index.h"
#include "store/tiers/peer_records.h"

namespace droidspeak {

struct PeerDirectoryParts {
  const PeerOptions& options;
  const PeerHoldings& holdings;
  PeerIndex& index;
  PeerNodeId node;      // this one
  std::string address;  // of this one
  // A node that was not known before.
  std::function<void(const std::string& address)> on_node;
};

class PeerDirectory {
 public:
  explicit PeerDirectory(PeerDirectoryParts parts);  // throws Failure
  ~PeerDirectory();                                  // gives the lease back, if that is quick
  PeerDirectory(const PeerDirectory&) = delete;
  PeerDirectory& operator=(const PeerDirectory&) = delete;

  // A block of the holdings to be told of, or to be told of anew.
  void publish(const Digest& key);
  void ask(std::span<const Digest> keys);
  void wait_for_answers(std::span<const Digest> keys, std::chrono::steady_clock::time_point until);
  // Until everything so far was told, or cannot be.
  void drain();

  bool is_up() const { return is_up_.load(); }

 private:
  using Time = std::chrono::steady_clock::time_point;

  struct Work {
    std::vector<Digest> told;
    std::vector<Digest> asked;
    bool has_heartbeat = false;
  };

  void run();
  Work take_work();
  void do_work(const Work& work);
  void tell(const Work& work);
  bool find_out(std::span<const Digest> keys);
  bool find_leases(const std::set<PeerNodeId>& nodes);
  void answer_nothing(std::span<const Digest> keys);
  void finish(const Work& work);
  void note_up();
  void note_down(const std::string& why);

  const PeerDirectoryParts parts_;
  const PeerRecords records_;
  DirectoryLink link_;
  std::atomic<bool> is_up_ = false;
  Time next_heartbeat_{};
  Time next_round_{};  // of telling everything anew
  Time try_again_{};
  std::chrono::milliseconds pause_{0};

  Mutex mutex_;
  Condition changed_;
  std::vector<Digest> to_tell_ GUARDED_BY(mutex_);
  std::vector<Digest> to_ask_ GUARDED_BY(mutex_);
  uint64_t num_to_tell_ GUARDED_BY(mutex_) = 0;
  uint64_t num_told_ GUARDED_BY(mutex_) = 0;
  bool is_stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace droidspeak
