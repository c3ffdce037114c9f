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

// Preempted sequences first, oldest first; then one of each variant in turn, in order of arrival
// within a variant, so that one variant's flood does not hold up the others.
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
  using Line = std::deque<std::unique_ptr<Sequence>>;

  Line preempted_;                     // ascending ids
  std::map<std::string, Line> lines_;  // by variant; never empty
  std::deque<std::string> turns_;      // names of lines_, next first
  size_t size_ = 0;
};

struct AdmissionOptions {
  int32_t max_running = 64;
};

// A sequence is admitted when its tokens so far fit, with a block to grow for each one running.
Admit decide_admission(const Sequence& sequence,
                       const BlockPool& pool,
                       int32_t num_running,
                       const AdmissionOptions& options);

}  // namespace droidspeak
