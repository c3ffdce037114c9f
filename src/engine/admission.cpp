#include "engine/admission.h"

#include <algorithm>
#include <optional>
#include <set>

#include "base/check.h"

namespace droidspeak {
namespace {

using Line = std::deque<std::unique_ptr<Sequence>>;
using Decide = std::function<Admit(Sequence&)>;

void insert_in_order(Line& line, std::unique_ptr<Sequence> sequence) {
  auto place =
      std::ranges::find_if(line, [&](const auto& other) { return sequence->goes_before(*other); });
  line.insert(place, std::move(sequence));
}

// Takes the first admitted sequence of a line, and of this priority if one is given; `held` tells
// that the line must not be passed.
std::unique_ptr<Sequence> take_from(Line& line,
                                    std::optional<int32_t> priority,
                                    const Decide& decide,
                                    bool& held) {
  for (auto place = line.begin(); place != line.end(); ++place) {
    if (priority && (*place)->request.priority != *priority) continue;
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

// The name at `index` has had its turn.
void end_turn(std::deque<std::string>& turns, size_t index, bool has_more) {
  std::string name = std::move(turns[index]);
  turns.erase(turns.begin() + static_cast<std::ptrdiff_t>(index));
  if (has_more) turns.push_back(std::move(name));
}

}  // namespace

void WaitingLine::push(std::unique_ptr<Sequence> sequence) {
  const std::string& owner = sequence->request.tenant;
  if (!tenants_.contains(owner)) turns_.push_back(owner);
  Tenant& tenant = tenants_[owner];
  const std::string& model = sequence->request.model;
  Line& line = tenant.lines[model];
  if (line.empty()) tenant.turns.push_back(model);
  insert_in_order(line, std::move(sequence));
  ++size_;
}

// In order of arrival, whoever's they are: they have been admitted before.
void WaitingLine::push_preempted(std::unique_ptr<Sequence> sequence) {
  auto place =
      std::ranges::find_if(preempted_, [&](const auto& other) { return other->id > sequence->id; });
  preempted_.insert(place, std::move(sequence));
  ++size_;
}

std::unique_ptr<Sequence> WaitingLine::take(const Decide& decide) {
  bool held = false;
  std::unique_ptr<Sequence> taken = droidspeak::take_from(preempted_, {}, decide, held);
  for (size_t i = 0; i < turns_.size() && !taken && !held; ++i) {
    auto tenant = tenants_.find(turns_[i]);
    taken = take_from(tenant->second, decide, held);
    if (!taken) continue;
    bool has_more = !tenant->second.lines.empty();
    if (!has_more) tenants_.erase(tenant);
    end_turn(turns_, i, has_more);
  }
  if (taken) --size_;
  return taken;
}

std::unique_ptr<Sequence> WaitingLine::take_from(Tenant& tenant, const Decide& decide, bool& held) {
  std::set<int32_t> priorities;
  for (const auto& [name, line] : tenant.lines) {
    for (const auto& sequence : line) priorities.insert(sequence->request.priority);
  }
  for (int32_t priority : priorities) {
    for (size_t i = 0; i < tenant.turns.size() && !held; ++i) {
      auto line = tenant.lines.find(tenant.turns[i]);
      std::unique_ptr<Sequence> taken = droidspeak::take_from(line->second, priority, decide, held);
      if (!taken) continue;
      bool has_more = !line->second.empty();
      if (!has_more) tenant.lines.erase(line);
      end_turn(tenant.turns, i, has_more);
      return taken;
    }
  }
  return nullptr;
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
  for (auto& [owner, tenant] : tenants_) {
    auto& lines = tenant.lines;
    for (auto& [name, line] : lines) sweep(line);
    std::erase_if(lines, [](const auto& entry) { return entry.second.empty(); });
    std::erase_if(tenant.turns, [&](const std::string& name) { return !lines.contains(name); });
  }
  std::erase_if(tenants_, [](const auto& entry) { return entry.second.lines.empty(); });
  std::erase_if(turns_, [&](const std::string& owner) { return !tenants_.contains(owner); });
  size_ -= removed.size();
  return removed;
}

void WaitingLine::check_integrity() const {
  size_t counted = preempted_.size();
  auto is_in_order = [](const Line& line) {
    return std::is_sorted(line.begin(), line.end(),
                          [](const auto& a, const auto& b) { return a->goes_before(*b); });
  };
  auto has_one_turn = [](const std::deque<std::string>& turns, const std::string& name) {
    return std::count(turns.begin(), turns.end(), name) == 1;
  };
  check(std::ranges::is_sorted(preempted_, {}, [](const auto& one) { return one->id; }),
        "preempted sequences wait in order of arrival");
  check(turns_.size() == tenants_.size(), "every tenant has one turn");
  for (const auto& [owner, tenant] : tenants_) {
    check(has_one_turn(turns_, owner) && !tenant.lines.empty(), "every tenant has one turn");
    check(tenant.turns.size() == tenant.lines.size(), "every line has one turn");
    for (const auto& [name, line] : tenant.lines) {
      check(!line.empty() && is_in_order(line), "a line has sequences in order");
      check(has_one_turn(tenant.turns, name), "every line has one turn");
      counted += line.size();
    }
  }
  check(counted == size_, "the waiting line's size is what it holds");
}

Admit decide_admission(const Sequence& sequence,
                       const BlockPool& pool,
                       int32_t num_running,
                       const AdmissionOptions& options) {
  if (num_running >= options.max_running) return Admit::kFull;
  int32_t needed = blocks_for(sequence.num_tokens() + 1) + num_running;
  int32_t room = pool.num_free() + options.num_held_blocks;
  return room >= std::min(needed, pool.num_blocks()) ? Admit::kNow : Admit::kFull;
}

}  // namespace droidspeak
