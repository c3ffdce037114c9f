// Who may hold memory: the line of waiting requests, and whether the next one fits.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/sequence.h"
#include "kv/block_pool.h"

namespace droidspeak {

enum class Admit {
  kNow,
  kLater,  // others may pass it
  kFull,   // nobody may pass it, so that a long prompt is not starved by short ones
};

// Preempted sequences first, oldest first. Then one of each tenant in turn, and of a tenant its
// smallest priority first, one of each variant in turn, in order of arrival within a variant: so a
// flood of one tenant's, or for one variant, does not hold up the others.
class WaitingLine {
 public:
  void push(std::unique_ptr<Sequence> sequence);
  void push_preempted(std::unique_ptr<Sequence> sequence);

  // The first one in fair order that `decide` admits; null when there is none or the line is held.
  std::unique_ptr<Sequence> take(const std::function<Admit(Sequence&)>& decide);
  std::vector<std::unique_ptr<Sequence>> remove_if(
      const std::function<bool(const Sequence&)>& is_gone);

  size_t size() const { return size_; }

  // Panics unless sizes and orders agree.
  void check_integrity() const;

 private:
  using Line = std::deque<std::unique_ptr<Sequence>>;  // as Sequence::goes_before() says

  struct Tenant {
    std::map<std::string, Line> lines = {};  // by variant; never empty
    std::deque<std::string> turns = {};      // names of lines, next first
  };

  static std::unique_ptr<Sequence> take_from(Tenant& tenant,
                                             const std::function<Admit(Sequence&)>& decide,
                                             bool& held);

  Line preempted_;                         // ascending ids
  std::map<std::string, Tenant> tenants_;  // never without lines
  std::deque<std::string> turns_;          // names of tenants_, next first
  size_t size_ = 0;
};

struct AdmissionOptions {
  int32_t max_running = 64;
  int32_t num_held_blocks = 0;  // that the sequence would share with others, who hold them now
};

// A sequence is admitted when its tokens so far fit beside what it shares, with a block to grow for
// each one running.
Admit decide_admission(const Sequence& sequence,
                       const BlockPool& pool,
                       int32_t num_running,
                       const AdmissionOptions& options);

}  // namespace droidspeak
