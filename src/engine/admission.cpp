#include "engine/admission.h"

#include <algorithm>

#include "base/check.h"

namespace droidspeak {
namespace {

// Takes the first admitted sequence of a line; `held` tells that the line must not be passed.
std::unique_ptr<Sequence> take_from(std::deque<std::unique_ptr<Sequence>>& line,
                                    const std::function<Admit(Sequence&)>& decide,
                                    bool& held) {
  for (auto place = line.begin(); place != line.end(); ++place) {
    switch (decide(**place)) {
      case Admit::kNow: {
        std::unique_ptr<Sequence> taken = std::move(*place);
        line.erase(place);
        return taken;
      }
      case Admit::kLater:
        break;
      case Admit::kFull:
        held = true;
        return nullptr;
    }
  }
  return nullptr;
}

}  // namespace

void WaitingLine::push(std::unique_ptr<Sequence> sequence) {
  const std::string& name = sequence->request.model;
  Line& line = lines_[name];
  if (line.empty()) turns_.push_back(name);
  line.push_back(std::move(sequence));
  ++size_;
}

void WaitingLine::push_preempted(std::unique_ptr<Sequence> sequence) {
  auto place = std::find_if(preempted_.begin(), preempted_.end(),
                            [&](const auto& other) { return other->id > sequence->id; });
  preempted_.insert(place, std::move(sequence));
  ++size_;
}

std::unique_ptr<Sequence> WaitingLine::take(const std::function<Admit(Sequence&)>& decide) {
  bool held = false;
  std::unique_ptr<Sequence> taken = take_from(preempted_, decide, held);
  for (size_t i = 0; i < turns_.size() && !taken && !held; ++i) {
    std::string name = turns_[i];
    Line& line = lines_[name];
    taken = take_from(line, decide, held);
    if (!taken) continue;
    turns_.erase(turns_.begin() + static_cast<std::ptrdiff_t>(i));
    if (line.empty()) {
      lines_.erase(name);
    } else {
      turns_.push_back(name);
    }
  }
  if (taken) --size_;
  return taken;
}

std::vector<std::unique_ptr<Sequence>> WaitingLine::remove_if(
    const std::function<bool(const Sequence&)>& is_gone) {
  std::vector<std::unique_ptr<Sequence>> removed;
  auto sweep = [&](Line& line) {
    for (auto& sequence : line) {
      if (is_gone(*sequence)) removed.push_back(std::move(sequence));
    }
    std::erase(line, nullptr);
  };
  sweep(preempted_);
  for (auto& [name, line] : lines_) sweep(line);
  std::erase_if(turns_, [&](const std::string& name) { return lines_[name].empty(); });
  std::erase_if(lines_, [](const auto& entry) { return entry.second.empty(); });
  size_ -= removed.size();
  return removed;
}

void WaitingLine::check_integrity() const {
  size_t counted = preempted_.size();
  auto is_ascending = [](const Line& line) {
    return std::is_sorted(line.begin(), line.end(),
                          [](const auto& a, const auto& b) { return a->id < b->id; });
  };
  check(is_ascending(preempted_), "preempted sequences wait in order of arrival");
  check(turns_.size() == lines_.size(), "every line has one turn");
  for (const auto& [name, line] : lines_) {
    check(!line.empty() && is_ascending(line), "a line has sequences in order of arrival");
    check(std::count(turns_.begin(), turns_.end(), name) == 1, "every line has one turn");
    counted += line.size();
  }
  check(counted == size_, "the waiting line's size is what it holds");
}

Admit decide_admission(const Sequence& sequence,
                       const BlockPool& pool,
                       int32_t num_running,
                       const AdmissionOptions& options) {
  if (num_running >= options.max_running) return Admit::kFull;
  int32_t needed = blocks_for(sequence.num_tokens() + 1);
  return pool.num_free() >= std::min(needed + num_running, pool.num_blocks()) ? Admit::kNow
                                                                              : Admit::kFull;
}

}  // namespace droidspeak
