#include "store/tiers/disk_index.h"

#include <algorithm>

#include "base/check.h"

namespace droidspeak {

uint64_t disk_bytes_of(uint64_t file_bytes) {
  constexpr uint64_t kDiskBlock = 4096;
  return (file_bytes + kDiskBlock - 1) / kDiskBlock * kDiskBlock;
}

void DiskIndex::add(const std::string& path,
                    const BlockFileHeader& header,
                    std::chrono::nanoseconds now) {
  auto [found, is_new] = blocks_.try_emplace(header.key);
  Block& block = found->second;
  if (is_new) {
    policy_->add({header.key, header.position});
    block.last_use = now;
  }
  auto same = std::find_if(block.files.begin(), block.files.end(),
                           [&](const DiskFile& file) { return file.path == path; });
  if (same == block.files.end()) same = block.files.insert(same, DiskFile{path, 0, 0, {}, {}});
  bytes_ += disk_bytes_of(header.file_bytes) - same->bytes;
  same->bytes = disk_bytes_of(header.file_bytes);
  same->serial = ++last_serial_;
  same->owner = header.owner;
  same->ids.clear();
  for (const BlockFileEntry& entry : header.entries) same->ids.push_back(entry.id);
}

const DiskFile* DiskIndex::find(const Digest& key, EntryId id) const {
  auto found = blocks_.find(key);
  if (found == blocks_.end()) return nullptr;
  for (const DiskFile& file : found->second.files) {
    if (std::binary_search(file.ids.begin(), file.ids.end(), id)) return &file;
  }
  return nullptr;
}

bool DiskIndex::has_file(const Digest& key, const std::string& path) const {
  auto found = blocks_.find(key);
  return found != blocks_.end() &&
         std::ranges::any_of(found->second.files,
                             [&](const DiskFile& file) { return file.path == path; });
}

std::vector<EntryId> DiskIndex::entries(const Digest& key) const {
  std::vector<EntryId> ids;
  auto found = blocks_.find(key);
  if (found == blocks_.end()) return ids;
  for (const DiskFile& file : found->second.files) {
    ids.insert(ids.end(), file.ids.begin(), file.ids.end());
  }
  return ids;
}

void DiskIndex::touch(const Digest& key, std::chrono::nanoseconds now) {
  auto found = blocks_.find(key);
  if (found == blocks_.end()) return;
  std::chrono::nanoseconds& last = found->second.last_use;
  if (now - last < kOneUse) return;
  last = now;
  policy_->touch(key);
}

std::vector<std::string> DiskIndex::remove(const Digest& key) {
  if (!blocks_.contains(key)) return {};
  policy_->remove(key);
  return forget(key);
}

std::vector<std::string> DiskIndex::remove_if_unchanged(const Digest& key, uint64_t serial) {
  auto found = blocks_.find(key);
  if (found == blocks_.end()) return {};
  const std::vector<DiskFile>& files = found->second.files;
  bool is_same = std::any_of(files.begin(), files.end(),
                             [serial](const DiskFile& file) { return file.serial == serial; });
  return is_same ? remove(key) : std::vector<std::string>{};
}

std::vector<std::string> DiskIndex::evict() {
  std::optional<Digest> key = policy_->evict([](const Digest&) { return true; });
  if (!key) return {};
  return forget(*key);
}

std::vector<std::string> DiskIndex::forget(const Digest& key) {
  std::vector<std::string> paths;
  auto found = blocks_.find(key);
  for (DiskFile& file : found->second.files) {
    bytes_ -= file.bytes;
    paths.push_back(std::move(file.path));
  }
  blocks_.erase(found);
  return paths;
}

std::vector<Digest> DiskIndex::keys() const {
  std::vector<Digest> keys;
  keys.reserve(blocks_.size());
  for (const auto& [key, block] : blocks_) keys.push_back(key);
  return keys;
}

std::vector<Digest> DiskIndex::keys_owned_by(const Digest& owner) const {
  std::vector<Digest> keys;
  for (const auto& [key, block] : blocks_) {
    if (std::ranges::find(block.files, owner, &DiskFile::owner) != block.files.end())
      keys.push_back(key);
  }
  return keys;
}

void DiskIndex::check_integrity() const {
  uint64_t bytes = 0;
  for (const auto& [key, block] : blocks_) {
    check(!block.files.empty(), "a block on disk has a file");
    for (const DiskFile& file : block.files) {
      check(!file.ids.empty() && std::is_sorted(file.ids.begin(), file.ids.end()),
            "a block file lists its entries in order");
      bytes += file.bytes;
    }
  }
  check(bytes == bytes_, "bytes on disk add up");
  check(policy_->size() == blocks_.size(), "the eviction policy knows every block on disk");
}

}  // namespace droidspeak
