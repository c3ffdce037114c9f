#include "store/read_ahead.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <tuple>
#include <utility>

namespace droidspeak {
namespace {

// Begun and not taken yet: enough for the fastest link, little beside the host tier's memory.
constexpr uint64_t kMostBytes = uint64_t{256} << 20;
constexpr uint64_t kPieceBytes = uint64_t{64} << 20;
// The same of all readers together; beyond that each goes on in small pieces.
constexpr uint64_t kMostBytesOfAll = 2 * kMostBytes;
constexpr uint64_t kSmallPieceBytes = uint64_t{2} << 20;
constexpr size_t kUnknownBytes = size_t{1} << 20;
constexpr std::chrono::milliseconds kLook{20};  // how often a waiting reader looks whether to stop

// What lies together is read together: in the order in which the first of it is needed.
std::vector<EntryRead> put_together(std::vector<EntryRead> entries) {
  std::unordered_map<EntryRead, size_t, EntryReadHash> first_of_group;
  auto group_of = [](EntryRead entry) {
    if (entry.id.kind == EntryKind::kKeyValue) entry.id.layer -= entry.id.layer % kLayersTogether;
    return entry;
  };
  for (size_t i = 0; i < entries.size(); ++i) first_of_group.try_emplace(group_of(entries[i]), i);
  std::ranges::stable_sort(
      entries, {}, [&](const EntryRead& entry) { return first_of_group.at(group_of(entry)); });
  return entries;
}

}  // namespace

Arrivals::Arrivals(Parts parts, std::vector<EntryRead> entries)
    : parts_(std::move(parts)),
      entries_(std::move(entries)),
      erase_count_(parts_.host.erase_count()),
      places_(entries_.size()) {}

std::span<std::byte> Arrivals::room(size_t index, size_t bytes) {
  if (!parts_.sizes.has_size(entries_[index].id, bytes)) return {};
  return allocate(index, bytes);
}

std::span<std::byte> Arrivals::room_for_piece(size_t index, size_t bytes) {
  if (parts_.pieces_are == PiecesAre::kDecoded) return {};
  return allocate(index, bytes);
}

std::span<std::byte> Arrivals::allocate(size_t index, size_t bytes) {
  std::shared_ptr<HostExtent> extent = parts_.host.allocate(bytes);
  bool is_in_host = extent != nullptr;
  if (!is_in_host) extent = HostMemory::allocate_outside(bytes);
  MutexLock lock(mutex_);
  places_[index].extent = extent;
  places_[index].is_in_host = is_in_host;
  return extent->bytes();
}

void Arrivals::done(size_t index, const BlockLabel* label) {
  settle(index, label, nullptr);
}

void Arrivals::done_piece(size_t index, const BlockLabel& label, EntryCoding coding) {
  settle(index, &label, std::make_shared<const EntryCoding>(std::move(coding)));
}

void Arrivals::settle(size_t index,
                      const BlockLabel* label,
                      std::shared_ptr<const EntryCoding> coding) {
  std::shared_ptr<HostExtent> extent;
  bool is_in_host = false;
  {
    MutexLock lock(mutex_);
    extent = places_[index].extent;
    is_in_host = places_[index].is_in_host;
  }
  if (label != nullptr && is_in_host) {
    HostEntry entry{entries_[index].id, extent->bytes(), extent, coding};
    parts_.host.insert(*label, std::span(&entry, 1), erase_count_);
  }
  if (label != nullptr && arrived_bytes_) {
    size_t bytes = coding ? coding->value_bytes() : extent->bytes().size();
    arrived_bytes_->fetch_add(bytes, std::memory_order_relaxed);
  }
  MutexLock lock(mutex_);
  places_[index].coding = std::move(coding);
  places_[index].stage = label != nullptr ? Stage::kArrived : Stage::kFailed;
  if (label == nullptr) places_[index].extent.reset();
  changed_.notify_all();
}

bool Arrivals::has_failed(size_t index) const {
  MutexLock lock(mutex_);
  return places_[index].stage == Stage::kFailed;
}

std::optional<PinnedEntry> Arrivals::wait(size_t index, const std::atomic<bool>& is_stopped) {
  MutexLock lock(mutex_);
  Place& place = places_[index];
  while (place.stage == Stage::kOnItsWay && !is_stopped) changed_.wait_for(mutex_, kLook);
  return pinned(place);
}

std::optional<PinnedEntry> Arrivals::wait_for(size_t index, std::chrono::milliseconds limit) {
  auto until = std::chrono::steady_clock::now() + limit;
  MutexLock lock(mutex_);
  Place& place = places_[index];
  while (place.stage == Stage::kOnItsWay && std::chrono::steady_clock::now() < until)
    changed_.wait_for(mutex_, kLook);
  return pinned(place);
}

std::optional<PinnedEntry> Arrivals::pinned(const Place& place) const {
  if (place.stage != Stage::kArrived) return std::nullopt;
  return PinnedEntry(place.extent, place.extent->bytes(), parts_.tier, place.coding);
}

bool ArrivalTable::has_room_for(uint64_t bytes) const {
  return bytes_ + bytes <= kMostBytesOfAll;
}

std::optional<Arriving> ArrivalTable::find(const EntryRead& entry) const {
  MutexLock lock(mutex_);
  auto found = places_.find(entry);
  if (found == places_.end()) return std::nullopt;
  std::shared_ptr<Arrivals> arrivals = found->second.arrivals.lock();
  size_t index = found->second.index;
  // One that nobody waits for any more may end without its entries.
  if (!arrivals || !arrivals->is_wanted() || arrivals->has_failed(index)) return std::nullopt;
  return Arriving{std::move(arrivals), index, Arriving::Reader::kAnother};
}

void ArrivalTable::add(const std::shared_ptr<Arrivals>& arrivals) {
  MutexLock lock(mutex_);
  if (places_.size() + arrivals->entries().size() > limit_) forget_ended();
  for (size_t i = 0; i < arrivals->entries().size(); ++i)
    places_.insert_or_assign(arrivals->entries()[i], Place{arrivals, i});
}

void ArrivalTable::forget_ended() {
  std::erase_if(places_, [](const auto& place) { return place.second.arrivals.expired(); });
  limit_ = std::max<size_t>(4096, 2 * places_.size());
}

// Delegating: what throws below ends in the destructor, which gives back what was counted.
ReadAhead::ReadAhead(const ReadAheadParts& parts, std::vector<EntryRead> in_order_of_need)
    : ReadAhead(parts) {
  bool has_own_threads = std::ranges::any_of(
      parts.tiers, [](const CacheTier* tier) { return tier->read_thread() == ReadThread::kOwn; });
  if (!has_own_threads) return;
  MutexLock lock(mutex_);
  for (EntryRead& entry : put_together(std::move(in_order_of_need))) {
    waiting_.push_back(entry);
    is_waiting_.insert(entry);
  }
  begin_more();
}

ReadAhead::~ReadAhead() {
  stop();
}

size_t ReadAhead::bytes_of(EntryId id) const {
  bool is_kv = id.kind == EntryKind::kKeyValue;
  if (is_kv && parts_.sizes.layout.num_layers > 0) return parts_.sizes.layout.layer_bytes();
  if (!is_kv && parts_.sizes.input_bytes > 0) return parts_.sizes.input_bytes;
  return kUnknownBytes;
}

// The first tier that has the entry, when it reads on threads of its own.
CacheTier* ReadAhead::tier_of(const EntryRead& entry) const {
  if (parts_.host.holds(entry.key, entry.id)) return nullptr;
  for (CacheTier* tier : parts_.tiers) {
    if (tier->pin(entry.key, entry.id)) return nullptr;
  }
  for (CacheTier* tier : parts_.tiers) {
    Presence found = Presence::kMiss;
    tier->look_up(std::span(&entry.key, 1), std::span(&entry.id, 1), std::span(&found, 1));
    if (found != Presence::kHit) continue;
    return tier->read_thread() == ReadThread::kOwn ? tier : nullptr;
  }
  return nullptr;
}

CacheTier* ReadAhead::find_tier(Tier tier) const {
  auto found = std::ranges::find(parts_.tiers, tier, &CacheTier::tier);
  return found != parts_.tiers.end() ? *found : nullptr;
}

std::optional<Arriving> ReadAhead::find_shared(const EntryRead& entry) const {
  std::optional<Arriving> shared = parts_.table.find(entry);
  if (shared && find_tier(shared->arrivals->tier()) == nullptr) return std::nullopt;
  return shared;
}

void ReadAhead::begin_more() {
  while (!waiting_.empty() && arriving_bytes_ + kPieceBytes <= kMostBytes &&
         parts_.table.has_room_for(kPieceBytes))
    begin_piece(kPieceBytes);
}

// What is needed at this moment does not wait for what lies before it to be taken.
void ReadAhead::begin(const EntryRead& entry) {
  while (is_waiting_.contains(entry))
    begin_piece(parts_.table.has_room_for(kPieceBytes) ? kPieceBytes : kSmallPieceBytes);
}

void ReadAhead::begin_piece(uint64_t most_bytes) {
  std::map<CacheTier*, std::vector<EntryRead>> by_tier;
  std::map<std::shared_ptr<Arrivals>, std::vector<size_t>> of_others;
  uint64_t bytes = 0;
  while (!waiting_.empty() && bytes < most_bytes) {
    EntryRead entry = waiting_.front();
    waiting_.pop_front();
    is_waiting_.erase(entry);
    if (std::optional<Arriving> shared = find_shared(entry)) {
      shared->arrivals->add_wanted();
      of_others[shared->arrivals].push_back(shared->index);
      arriving_.insert_or_assign(entry, std::move(*shared));
      bytes += bytes_of(entry.id);
    } else if (CacheTier* tier = tier_of(entry)) {
      by_tier[tier].push_back(entry);
      bytes += bytes_of(entry.id);
    }
  }
  arriving_bytes_ += bytes;
  parts_.table.add_bytes(bytes);
  for (const auto& [arrivals, indices] : of_others)
    find_tier(arrivals->tier())->share(load_, *arrivals, indices);
  for (auto& [tier, entries] : by_tier) {
    auto arrivals = std::make_shared<Arrivals>(
        Arrivals::Parts{parts_.host, parts_.sizes, parts_.pieces_are, tier->tier(), load_},
        std::move(entries));
    for (size_t i = 0; i < arrivals->entries().size(); ++i) {
      arrivals->add_wanted();
      arriving_.insert_or_assign(arrivals->entries()[i], Arriving{arrivals, i});
    }
    arrivals->count_into(arrived_bytes_);
    tier->read(arrivals->entries(), arrivals);
    parts_.table.add(arrivals);
  }
}

std::optional<PinnedEntry> ReadAhead::take(const EntryRead& entry) {
  Arriving arriving;
  {
    MutexLock lock(mutex_);
    begin(entry);
    auto found = arriving_.find(entry);
    awaited_tier_.reset();
    if (found == arriving_.end()) return std::nullopt;
    awaited_tier_ = found->second.arrivals->tier();
    arriving = std::move(found->second);
    arriving_.erase(found);
  }
  std::optional<PinnedEntry> taken = arriving.arrivals->wait(arriving.index, is_stopped_);
  arriving.arrivals->remove_wanted();
  MutexLock lock(mutex_);
  if (taken && arriving.reader == Arriving::Reader::kThis) taken_bytes_ += taken->value_bytes();
  if (is_stopped_) return taken;  // stop() gives back all that was begun
  arriving_bytes_ -= bytes_of(entry.id);
  parts_.table.remove_bytes(bytes_of(entry.id));
  begin_more();
  return taken;
}

std::optional<Tier> ReadAhead::awaited_tier() const {
  MutexLock lock(mutex_);
  return awaited_tier_;
}

void ReadAhead::note_awaited(Tier tier) {
  MutexLock lock(mutex_);
  awaited_tier_ = tier;
}

uint64_t ReadAhead::held_bytes() const {
  MutexLock lock(mutex_);
  uint64_t arrived = arrived_bytes_->load(std::memory_order_relaxed);
  return arrived - std::min(arrived, taken_bytes_);
}

void ReadAhead::stop() {
  is_stopped_ = true;
  MutexLock lock(mutex_);
  waiting_.clear();
  is_waiting_.clear();
  for (const auto& [entry, arriving] : arriving_) arriving.arrivals->remove_wanted();
  arriving_.clear();
  parts_.table.remove_bytes(std::exchange(arriving_bytes_, 0));
}

}  // namespace droidspeak
