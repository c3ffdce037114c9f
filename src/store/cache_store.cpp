#include "store/cache_store.h"

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "base/error.h"
#include "store/host_memory.h"
#include "store/tiers/disk_tier.h"
#include "store/tiers/file_system.h"
#include "store/tiers/host_tier.h"

namespace droidspeak {
namespace {

EntryEncoding encoding_of(DiskFormat format) {
  switch (format) {
    case DiskFormat::kRaw:
      return EntryEncoding::kRaw;
    case DiskFormat::kInt8:
      return EntryEncoding::kInt8;
    case DiskFormat::kCoded:
      return EntryEncoding::kCoded;
  }
  panic("a disk format that is none");
}

DiskTierOptions disk_options(const StoreOptions& options) {
  bool is_int8 = options.kv_layout.num_layers > 0 && options.kv_layout.dtype == DType::kI8;
  if (is_int8 && options.disk_format == DiskFormat::kCoded) {
    throw Failure(ErrorCode::kInvalidArgument,
                  "--cache-format coded: codes K/V of f32, f16 or bf16, --kv-dtype is int8; use "
                  "--cache-format raw with it");
  }
  constexpr uint64_t kMinQueueBytes = uint64_t{64} << 20;
  uint64_t queue_bytes = options.write_queue_bytes;
  if (queue_bytes == 0) queue_bytes = std::max(kMinQueueBytes, options.host_bytes / 2);
  return {.folder = options.disk_folder,
          .budget_bytes = options.disk_bytes,
          .queue_bytes = queue_bytes,
          .eviction = options.eviction,
          .encoding = {encoding_of(options.disk_format), options.kv_layout, options.input_bytes},
          .coded_model = options.coded_model};
}

}  // namespace

struct CacheStore::State {
  State(const StoreOptions& options, const Clock& clock)
      : host(std::make_shared<HostMemory>(options.host_bytes, options.device),
             make_eviction_policy(options.eviction),
             clock),
        sizes{EntryEncoding::kRaw, options.kv_layout, options.input_bytes},
        close_stall(options.close_stall) {
    if (options.disk_folder.empty()) return;
    FileSystem& files = options.file_system == nullptr ? real_files : *options.file_system;
    disk.emplace(disk_options(options), files, clock);
  }

  // The queue before the disk: a block leaves it only after it is in the index.
  bool holds(const Digest& key, EntryId id) const {
    return host.holds(key, id) || (disk && (disk->find_queued(key, id) || disk->holds(key, id)));
  }

  bool holds_in_memory(const Digest& key, EntryId id) const {
    return host.holds(key, id) || (disk && disk->find_queued(key, id));
  }

  std::optional<PinnedEntry> fetch_from_queue(const Digest& key, EntryId id);
  std::optional<PinnedEntry> fetch_from_disk(const Digest& key, EntryId id);
  void write_to_disk(const BlockLabel& label,
                     std::span<const EntryId> ids,
                     std::span<const HostEntry> filled);

  // Host memory twice. Before the disk: who puts a block now either has it in the queue already,
  // where it is cancelled, or sees the erasure after that and cancels it. After the disk: who has
  // read the block's file does not promote it any more.
  template <class Erase>
  void erase_everywhere(Erase erase_in) {
    erase_in(host);
    if (!disk) return;
    erase_in(*disk);
    erase_in(host);
  }

  FileSystem real_files;
  HostTier host;
  std::optional<DiskTier> disk;
  const BlockEncoding sizes;
  std::atomic<uint64_t> misses = 0;
  const std::chrono::milliseconds close_stall;
};

CacheStore::CacheStore(const StoreOptions& options, const Clock& clock)
    : disk_format_(options.disk_format), state_(std::make_shared<State>(options, clock)) {
  if (state_->disk) state_->disk->start(state_);
}

CacheStore::~CacheStore() {
  if (state_->disk) state_->disk->close(state_->close_stall);
}

uint64_t CacheStore::erase_count() const {
  return state_->host.erase_count();
}

std::optional<EntryRoom> CacheStore::reserve(const BlockLabel& label,
                                             std::span<const EntrySize> entries,
                                             uint64_t erase_count) {
  if (erase_count != this->erase_count()) return std::nullopt;
  EntryRoom room;
  room.label_ = label;
  room.erase_count_ = erase_count;
  size_t bytes = 0;
  for (const EntrySize& entry : entries) {
    check(state_->sizes.has_size(entry.id, entry.bytes), "what is put has the layout's size");
    bool is_there = state_->host.holds(label.key, entry.id);
    room.places_.push_back({entry.id, bytes, is_there ? 0 : entry.bytes});
    if (!is_there) bytes += HostMemory::rounded(entry.bytes);
  }
  if (bytes == 0) return room;
  room.extent_ = state_->host.allocate(bytes);
  room.is_in_host_ = room.extent_ != nullptr;
  if (!room.is_in_host_ && state_->disk && state_->disk->has_room_in_queue(bytes))
    room.extent_ = HostMemory::allocate_outside(bytes);
  if (room.extent_ == nullptr) return std::nullopt;
  return room;
}

void CacheStore::put(EntryRoom room) {
  std::vector<EntryId> ids;
  std::vector<HostEntry> filled;
  for (size_t i = 0; i < room.places_.size(); ++i) {
    std::span<std::byte> bytes = room.bytes(i);
    ids.push_back(room.places_[i].id);
    if (!bytes.empty()) filled.push_back({room.places_[i].id, bytes, room.extent_});
  }
  if (room.erase_count_ != erase_count()) return;
  if (room.is_in_host_ && !state_->host.insert(room.label_, filled, room.erase_count_)) return;
  if (!state_->disk) return;
  state_->write_to_disk(room.label_, ids, filled);
  // Erased on its way to the queue, where the erasure did not see it.
  if (room.erase_count_ != erase_count()) state_->disk->erase(room.label_.key);
}

std::span<std::byte> EntryRoom::bytes(size_t index) const {
  const Place& place = places_[index];
  if (place.bytes == 0) return {};
  return extent_->bytes().subspan(place.offset, place.bytes);
}

void CacheStore::State::write_to_disk(const BlockLabel& label,
                                      std::span<const EntryId> ids,
                                      std::span<const HostEntry> filled) {
  std::vector<PendingEntry> pending;
  bool has_lost_one = false;
  for (EntryId id : ids) {
    if (!disk->lacks(label.key, id)) continue;
    auto fresh = std::ranges::find(filled, id, &HostEntry::id);
    std::optional<HostEntry> found;
    if (fresh != filled.end()) {
      found = *fresh;
    } else {
      found = host.find(label.key, id);
    }
    has_lost_one |= !found;
    if (found) pending.push_back({found->id, found->bytes, std::move(found->owner)});
  }
  if (has_lost_one) disk->count_dropped_write();
  if (!pending.empty()) disk->write(label, std::move(pending));
}

size_t CacheStore::longest_prefix(std::span<const Digest> keys,
                                  std::span<const EntryId> wanted) const {
  size_t count = 0;
  auto has_all = [&](const Digest& key) {
    return std::all_of(wanted.begin(), wanted.end(),
                       [&](EntryId id) { return state_->holds(key, id); });
  };
  while (count < keys.size() && has_all(keys[count])) ++count;
  for (size_t i = count; i-- > 0;) {
    state_->host.touch(keys[i]);
    if (state_->disk) state_->disk->touch(keys[i]);
  }
  return count;
}

Tier CacheStore::tier_of(std::span<const Digest> keys, std::span<const EntryId> wanted) const {
  if (!state_->disk) return Tier::kHost;
  for (const Digest& key : keys) {
    std::vector<EntryId> on_disk;
    if (wanted.empty()) on_disk = state_->disk->entries(key);
    for (EntryId id : wanted.empty() ? std::span<const EntryId>(on_disk) : wanted) {
      if (!state_->holds_in_memory(key, id)) return Tier::kDisk;
    }
  }
  return Tier::kHost;
}

std::optional<PinnedEntry> CacheStore::fetch(const Digest& key, EntryId id) {
  std::optional<PinnedEntry> pinned;
  if (std::optional<HostEntry> found = state_->host.find(key, id)) {
    state_->host.count_hit(found->bytes.size());
    pinned.emplace(std::move(found->owner), found->bytes, Tier::kHost);
  } else if (state_->disk) {
    pinned = state_->fetch_from_queue(key, id);
    if (!pinned) pinned = state_->fetch_from_disk(key, id);
  }
  if (!pinned) {
    state_->misses.fetch_add(1, std::memory_order_relaxed);
    return std::nullopt;
  }
  state_->host.touch(key);
  if (state_->disk) state_->disk->touch(key);
  return pinned;
}

// What host memory had no room for, until it is written.
std::optional<PinnedEntry> CacheStore::State::fetch_from_queue(const Digest& key, EntryId id) {
  std::optional<PendingEntry> found = disk->find_queued(key, id);
  if (!found) return std::nullopt;
  host.count_hit(found->bytes.size());
  return PinnedEntry(std::move(found->owner), found->bytes, Tier::kHost);
}

std::optional<PinnedEntry> CacheStore::State::fetch_from_disk(const Digest& key, EntryId id) {
  uint64_t erase_count = host.erase_count();
  std::optional<DiskEntry> found = disk->find(key, id);
  if (!found) return std::nullopt;
  size_t bytes = found->entry.bytes;
  std::shared_ptr<HostExtent> extent = host.allocate(bytes);
  bool is_in_host = extent != nullptr;
  if (!is_in_host) extent = HostMemory::allocate_outside(bytes);
  if (!disk->read(*found, extent->bytes())) return std::nullopt;
  HostEntry entry{id, extent->bytes(), extent};
  const BlockFileHeader& header = found->file->header;
  if (is_in_host)
    host.insert({key, header.owner, header.position}, std::span(&entry, 1), erase_count);
  return PinnedEntry(std::move(entry.owner), entry.bytes, Tier::kDisk);
}

void CacheStore::erase(std::span<const Digest> keys) {
  for (const Digest& key : keys) state_->erase_everywhere([&](auto& tier) { tier.erase(key); });
}

void CacheStore::erase_owned_by(const Digest& owner) {
  state_->erase_everywhere([&](auto& tier) { tier.erase_owned_by(owner); });
}

void CacheStore::clear() {
  state_->erase_everywhere([](auto& tier) { tier.clear(); });
}

void CacheStore::flush() {
  if (state_->disk) state_->disk->flush();
}

StoreCounters CacheStore::counters() const {
  StoreCounters counters;
  HostTierCounters host = state_->host.counters();
  counters.host = {.hits = host.hits,
                   .bytes_read = host.bytes_read,
                   .bytes_written = host.bytes_written,
                   .evictions = host.evictions,
                   .entries = state_->host.num_blocks(),
                   .bytes = state_->host.bytes(),
                   .capacity_bytes = state_->host.budget_bytes()};
  counters.misses = state_->misses.load(std::memory_order_relaxed);
  if (!state_->disk) return counters;
  DiskTierCounters disk = state_->disk->counters();
  counters.disk = {.hits = disk.hits,
                   .bytes_read = disk.bytes_read,
                   .bytes_written = disk.bytes_written,
                   .evictions = disk.evictions,
                   .entries = state_->disk->num_blocks(),
                   .bytes = state_->disk->bytes(),
                   .capacity_bytes = state_->disk->budget_bytes(),
                   .read_seconds = static_cast<double>(disk.read_nanoseconds) * 1e-9};
  counters.damaged = disk.damaged;
  counters.write_errors = disk.write_errors;
  counters.dropped_writes = disk.dropped_writes;
  return counters;
}

void CacheStore::check_integrity() const {
  state_->host.check_integrity();
  if (state_->disk) state_->disk->check_integrity();
}

}  // namespace droidspeak
