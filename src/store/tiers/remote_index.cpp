#include "store/tiers/remote_index.h"

#include <algorithm>

#include "store/tiers/remote_value.h"

namespace droidspeak {

const RemoteIndex::Value* RemoteIndex::find(const Block& block, EntryId id) {
  auto found = std::ranges::find(block.values, first_of_value(id), &Value::first);
  return found == block.values.end() ? nullptr : &*found;
}

RemoteIndex::Value& RemoteIndex::value_of(Block& block, EntryId id) {
  EntryId first = first_of_value(id);
  auto found = std::ranges::find(block.values, first, &Value::first);
  if (found != block.values.end()) return *found;
  block.values.push_back({.first = first});
  return block.values.back();
}

void RemoteIndex::look_up(std::span<const Digest> keys,
                          std::span<const EntryId> wanted,
                          std::span<Presence> found) const {
  MutexLock lock(mutex_);
  for (size_t k = 0; k < keys.size(); ++k) {
    const Block* block = blocks_.find(keys[k]);
    if (block == nullptr) continue;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const Value* value = find(*block, wanted[i]);
      Presence& presence = found[k * wanted.size() + i];
      if (value != nullptr) presence = std::max(presence, value->presence);
    }
  }
}

size_t RemoteIndex::num_known(std::span<const Digest> keys, std::span<const EntryId> wanted) const {
  auto is_on_its_way = [](const Block& block, EntryId id) {
    const Value* value = find(block, id);
    return value != nullptr && value->presence == Presence::kOnItsWay;
  };
  MutexLock lock(mutex_);
  for (size_t k = 0; k < keys.size(); ++k) {
    const Block* block = blocks_.find(keys[k]);
    if (block == nullptr) continue;
    for (EntryId id : wanted) {
      if (is_on_its_way(*block, id)) return k;
    }
  }
  return keys.size();
}

std::vector<RemoteQuestion> RemoteIndex::questions(std::span<const Digest> keys,
                                                   std::span<const EntryId> wanted,
                                                   Time now) {
  std::vector<EntryId> values;
  for (EntryId id : wanted) values.push_back(first_of_value(id));
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
  std::vector<RemoteQuestion> questions;
  MutexLock lock(mutex_);
  for (const Digest& key : keys) {
    RemoteQuestion question{key, {}};
    Block& block = blocks_.get(key);
    for (EntryId id : values) {
      Value& value = value_of(block, id);
      bool is_fresh = value.presence == Presence::kHit && now - value.known_since < kFresh;
      if (is_fresh || value.is_damaged || value.presence == Presence::kOnItsWay) continue;
      if (value.presence == Presence::kMiss) value.presence = Presence::kOnItsWay;
      question.values.push_back(id);
    }
    if (!question.values.empty()) questions.push_back(std::move(question));
  }
  return questions;
}

void RemoteIndex::set_there(const Digest& key, EntryId id, Time now) {
  MutexLock lock(mutex_);
  Value& value = value_of(blocks_.get(key), id);
  if (value.is_damaged) return;
  value.presence = Presence::kHit;
  value.known_since = now;
}

void RemoteIndex::set_damaged(const Digest& key, EntryId id) {
  MutexLock lock(mutex_);
  Value& value = value_of(blocks_.get(key), id);
  value.presence = Presence::kMiss;
  value.is_damaged = true;
}

void RemoteIndex::set_gone(const Digest& key, EntryId id) {
  MutexLock lock(mutex_);
  Block* block = blocks_.find(key);
  if (block == nullptr) return;
  std::erase_if(block->values,
                [&](const Value& value) { return value.first == first_of_value(id); });
  if (block->values.empty()) blocks_.erase(key);
}

void RemoteIndex::set_written(const BlockLabel& label, EntryId id, Time now) {
  MutexLock lock(mutex_);
  Block& block = blocks_.keep(label.key);
  block.owner = label.owner;
  block.is_written = true;
  Value& value = value_of(block, id);
  value = {.first = value.first, .presence = Presence::kHit, .known_since = now};
}

void RemoteIndex::append_names(const Digest& key,
                               const Block& block,
                               std::vector<std::string>& names) {
  for (const Value& value : block.values) {
    if (value.presence == Presence::kHit) names.push_back(remote_name(key, value.first));
  }
}

template <class Wanted>
std::vector<std::string> RemoteIndex::remove_if(Wanted is_wanted) {
  std::vector<std::string> names;
  MutexLock lock(mutex_);
  blocks_.erase_if([&](const Digest& key, const Block& block) {
    if (!is_wanted(block)) return false;
    append_names(key, block, names);
    return true;
  });
  return names;
}

std::vector<std::string> RemoteIndex::remove(const Digest& key) {
  std::vector<std::string> names;
  MutexLock lock(mutex_);
  const Block* block = blocks_.find(key);
  if (block == nullptr) return names;
  append_names(key, *block, names);
  blocks_.erase(key);
  return names;
}

std::vector<std::string> RemoteIndex::remove_owned_by(const Digest& owner) {
  return remove_if([&](const Block& block) { return block.is_written && block.owner == owner; });
}

std::vector<std::string> RemoteIndex::remove_written() {
  std::vector<std::string> names = remove_if([](const Block& block) { return block.is_written; });
  forget_all();
  return names;
}

void RemoteIndex::forget_all() {
  MutexLock lock(mutex_);
  blocks_.clear();
}

size_t RemoteIndex::num_blocks() const {
  MutexLock lock(mutex_);
  return blocks_.size();
}

}  // namespace droidspeak
