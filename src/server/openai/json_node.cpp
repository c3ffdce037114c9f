#include "server/openai/json_node.h"

#include <algorithm>
#include <numeric>

namespace droidspeak::openai {

JsonObject::JsonObject() = default;
JsonObject::~JsonObject() = default;

void JsonObject::add(std::string key, JsonNode value) {
  members_.emplace_back(std::move(key), std::move(value));
}

void JsonObject::sort_names() {
  by_name_.resize(members_.size());
  std::iota(by_name_.begin(), by_name_.end(), uint32_t{0});
  std::stable_sort(by_name_.begin(), by_name_.end(), [this](uint32_t left, uint32_t right) {
    return members_[left].first < members_[right].first;
  });
}

void JsonObject::merge_duplicates() {
  std::vector<bool> is_dropped(members_.size(), false);
  bool has_duplicates = false;
  size_t first = 0;  // of a run of equal keys
  for (size_t i = 1; i < by_name_.size(); ++i) {
    if (members_[by_name_[i]].first != members_[by_name_[first]].first) {
      first = i;
      continue;
    }
    members_[by_name_[first]].second = std::move(members_[by_name_[i]].second);
    is_dropped[by_name_[i]] = true;
    has_duplicates = true;
  }
  if (!has_duplicates) return;
  std::vector<Member> kept;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (!is_dropped[i]) kept.push_back(std::move(members_[i]));
  }
  members_ = std::move(kept);
  sort_names();
}

void JsonObject::finish() {
  sort_names();
  merge_duplicates();
}

const JsonNode* JsonObject::find(std::string_view key) const {
  auto found = std::lower_bound(
      by_name_.begin(), by_name_.end(), key,
      [this](uint32_t place, std::string_view wanted) { return members_[place].first < wanted; });
  if (found == by_name_.end() || members_[*found].first != key) return nullptr;
  return &members_[*found].second;
}

}  // namespace droidspeak::openai
