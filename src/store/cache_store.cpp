#include "store/cache_store.h"

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "base/error.h"
#include "codec/device_decoder.h"
#include "store/host_memory.h"
#include "store/read_ahead.h"
#include "store/tiers/disk_tier.h"
#include "store/tiers/file_system.h"
#include "store/tiers/host_tier.h"
#include "store/tiers/peer_tier.h"
#include "store/tiers/remote_tier.h"

namespace droidspeak {
namespace {

// One entry, from a tier that reads on threads of its own.
constexpr std::chrono::milliseconds kLongestRead{2000};
constexpr std::chrono::milliseconds kOrderLasts{200};

bool lie_together(EntryId a, EntryId b) {
  if (a.kind != b.kind) return false;
  bool is_kv = a.kind == EntryKind::kKeyValue;
  return is_kv ? a.layer / kLayersTogether == b.layer / kLayersTogether : a.layer == b.layer;
}

uint64_t queue_bytes(const StoreOptions& options) {
  constexpr uint64_t kMinQueueBytes = uint64_t{64} << 20;
  if (options.write_queue_bytes > 0) return options.write_queue_bytes;
  return std::max(kMinQueueBytes, options.host_bytes / 2);
}

// One thread reads and checks about as fast as one core decodes; a device decodes faster than that.
// Four for one load, and one more (ReadPool).
constexpr size_t kReadersForADevice = 5;

DiskTierOptions disk_options(const StoreOptions& options, PiecesAre pieces_are) {
  bool is_int8 = options.kv_layout.num_layers > 0 && options.kv_layout.dtype == DType::kI8;
  if (is_int8 && options.disk_format == DiskFormat::kCoded) {
    throw Failure(ErrorCode::kInvalidArgument,
                  "--cache-format coded: codes K/V of f32, f16 or bf16, --kv-dtype is int8; use "
                  "--cache-format raw with it");
  }
  return {.folder = options.disk_folder,
          .budget_bytes = options.disk_bytes,
          .queue_bytes = queue_bytes(options),
          .eviction = options.eviction,
          .encoding = {encoding_of(options.disk_format), options.kv_layout, options.input_bytes},
          .coded_model = options.coded_model,
          .num_readers = pieces_are == PiecesAre::kKept ? kReadersForADevice : 0};
}

StoredFormats formats_of(const StoreOptions& options) {
  StoredFormats formats{
      .disk = options.disk_format,
      .remote = options.remote.servers.empty() ? RemoteFormat::kRaw : options.remote.format};
  if (may_be_coded(options)) formats.coding = digest_of_coding(options.coded_model);
  return formats;
}

RemoteStorage remote_storage(const StoreOptions& options) {
  bool is_int8 = options.kv_layout.num_layers > 0 && options.kv_layout.dtype == DType::kI8;
  if (is_int8 && options.remote.format == RemoteFormat::kCoded) {
    throw Failure(ErrorCode::kInvalidArgument,
                  "--remote-format coded: codes K/V of f32, f16 or bf16, --kv-dtype is int8; use "
                  "--remote-format auto or raw with it");
  }
  return {queue_bytes(options), options.coded_model};
}

std::shared_ptr<DeviceDecoder> choose_decoder(const StoreOptions& options) {
  bool is_on_disk = !options.disk_folder.empty() && options.disk_format == DiskFormat::kCoded;
  bool may_come_coded = is_on_disk || !options.remote.servers.empty();
  if (options.decoder || !may_come_coded || options.device == nullptr) return options.decoder;
  return make_device_decoder(*options.device, options.kv_layout);
}

}  // namespace

bool may_be_coded(const StoreOptions& options) {
  if (options.kv_layout.dtype == DType::kI8) return false;
  bool is_remote = !options.remote.servers.empty();
  return options.disk_format == DiskFormat::kCoded ||
         (is_remote && (options.remote.format == RemoteFormat::kCoded ||
                        options.remote.format == RemoteFormat::kAuto));
}

struct CacheStore::State {
  State(const StoreOptions& options, const Clock& clock)
      : host(std::make_shared<HostMemory>(options.host_bytes, options.device),
             make_eviction_policy(options.eviction),
             clock),
        sizes{EntryEncoding::kRaw, options.kv_layout, options.input_bytes},
        decoder(choose_decoder(options)),
        close_stall(options.close_stall) {
    FileSystem& files = options.file_system == nullptr ? real_files : *options.file_system;
    if (!options.disk_folder.empty())
      below.push_back(
          std::make_unique<DiskTier>(disk_options(options, pieces_are()), files, clock));
    if (!options.peer.listen.empty())
      below.push_back(std::make_unique<PeerTier>(options.peer, host, sizes));
    if (!options.remote.servers.empty())
      below.push_back(
          std::make_unique<RemoteTier>(options.remote, remote_storage(options), sizes, clock));
  }

  PiecesAre pieces_are() const { return decoder ? PiecesAre::kKept : PiecesAre::kDecoded; }

  // Those below the host tier in the order in which they are asked: of several behind links first
  // the one that entries come faster from, in whichever form they travel.
  std::vector<CacheTier*> in_order(TierSet avoided) const;
  // Of each entry, by key and wanted: where it would be read from.
  std::vector<std::optional<Tier>> tiers_of(std::span<const Digest> keys,
                                            std::span<const EntryId> wanted,
                                            TierSet avoided) const;
  std::optional<PinnedEntry> fetch(const Digest& key,
                                   EntryId id,
                                   std::span<CacheTier* const> tiers,
                                   ReadAhead* ahead = nullptr);
  std::optional<PinnedEntry> pin(const Digest& key, EntryId id) const;
  // `ahead`, where there is one, is told which tier is waited for.
  std::optional<PinnedEntry> read(CacheTier& tier, const EntryRead& entry, ReadAhead* ahead);
  void write_below(CacheTier& tier,
                   const BlockLabel& label,
                   std::span<const EntryId> ids,
                   std::span<const HostEntry> filled) const;

  // Host memory twice. Before the others: who puts a block now either has it in their queues
  // already, where it is cancelled, or sees the erasure after that and cancels it. After them: who
  // has read the block there does not promote it any more.
  template <class Erase>
  void erase_everywhere(Erase erase_in) {
    erase_in(host);
    if (below.empty()) return;
    for (const auto& tier : below) erase_in(*tier);
    erase_in(host);
  }

  FileSystem real_files;
  HostTier host;
  std::vector<std::unique_ptr<CacheTier>> below;  // from fast to slow
  ArrivalTable arriving;
  const BlockEncoding sizes;
  const std::shared_ptr<DeviceDecoder> decoder;
  std::atomic<uint64_t> misses = 0;
  const std::chrono::milliseconds close_stall;

 private:
  const std::vector<CacheTier*>& whole_order() const REQUIRES(order_mutex_);

  mutable Mutex order_mutex_;
  mutable std::chrono::steady_clock::time_point order_made_ GUARDED_BY(order_mutex_){};
  mutable std::vector<CacheTier*> order_ GUARDED_BY(order_mutex_);
};

std::vector<CacheTier*> CacheStore::State::in_order(TierSet avoided) const {
  MutexLock lock(order_mutex_);
  std::vector<CacheTier*> order = whole_order();
  std::erase_if(order, [&](const CacheTier* tier) { return avoided[index_of(tier->tier())]; });
  return order;
}

const std::vector<CacheTier*>& CacheStore::State::whole_order() const {
  auto now = std::chrono::steady_clock::now();
  if (!order_.empty() && now - order_made_ < kOrderLasts) return order_;
  order_made_ = now;
  order_.clear();
  for (const auto& tier : below) order_.push_back(tier.get());
  auto first_link = std::ranges::find_if(
      order_, [](const CacheTier* tier) { return is_behind_link(tier->tier()); });
  if (order_.end() - first_link < 2) return order_;
  // Where they are alike, the peers: that leaves the remote store's link to others.
  if (is_faster(first_link[1]->report(), first_link[0]->report()))
    std::swap(first_link[0], first_link[1]);
  return order_;
}

CacheStore::CacheStore(const StoreOptions& options, const Clock& clock)
    : formats_(formats_of(options)), state_(std::make_shared<State>(options, clock)) {
  for (const auto& tier : state_->below) tier->start(state_);
}

CacheStore::~CacheStore() {
  for (const auto& tier : state_->below) tier->close(state_->close_stall);
}

const std::shared_ptr<DeviceDecoder>& CacheStore::decoder() const {
  return state_->decoder;
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
  bool can_write = std::ranges::any_of(
      state_->below, [&](const auto& tier) { return tier->has_room_to_write(bytes); });
  if (!room.is_in_host_ && can_write) room.extent_ = HostMemory::allocate_outside(bytes);
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
  for (const auto& tier : state_->below) {
    state_->write_below(*tier, room.label_, ids, filled);
    // Erased on its way to the queue, where the erasure did not see it.
    if (room.erase_count_ != erase_count()) tier->erase(room.label_.key);
  }
}

std::span<std::byte> EntryRoom::bytes(size_t index) const {
  const Place& place = places_[index];
  if (place.bytes == 0) return {};
  return extent_->bytes().subspan(place.offset, place.bytes);
}

void CacheStore::State::write_below(CacheTier& tier,
                                    const BlockLabel& label,
                                    std::span<const EntryId> ids,
                                    std::span<const HostEntry> filled) const {
  std::vector<Presence> there(ids.size(), Presence::kMiss);
  tier.look_up(std::span(&label.key, 1), ids, there);
  std::vector<PendingEntry> pending;
  std::vector<EntryId> lost;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (there[i] == Presence::kHit) continue;
    auto fresh = std::ranges::find(filled, ids[i], &HostEntry::id);
    std::optional<HostEntry> found;
    if (fresh != filled.end()) {
      found = *fresh;
    } else {
      found = host.find_values(label.key, ids[i]);
    }
    if (!found) lost.push_back(ids[i]);
    if (found) pending.push_back({found->id, found->bytes, std::move(found->owner)});
  }
  if (!lost.empty()) tier.count_dropped_write();
  // What lies together there is whole or not there: who finds a part of it takes it for all.
  if (is_behind_link(tier.tier())) {
    std::erase_if(pending, [&](const PendingEntry& entry) {
      return std::ranges::any_of(lost, [&](EntryId id) { return lie_together(id, entry.id); });
    });
  }
  if (!pending.empty()) tier.write(label, std::move(pending));
}

size_t CacheStore::longest_prefix(std::span<const Digest> keys,
                                  std::span<const EntryId> wanted,
                                  TierSet avoided) const {
  // Mostly there is nothing: one block first, then all of them.
  auto count_leading = [&](std::span<const Digest> blocks) {
    std::vector<Presence> found(blocks.size() * wanted.size(), Presence::kMiss);
    state_->host.look_up(blocks, wanted, found);
    for (const auto& tier : state_->below) {
      if (!avoided[index_of(tier->tier())]) tier->look_up(blocks, wanted, found);
    }
    auto first_miss =
        std::ranges::find_if(found, [](Presence presence) { return presence != Presence::kHit; });
    return wanted.empty() ? blocks.size()
                          : static_cast<size_t>(first_miss - found.begin()) / wanted.size();
  };
  size_t count = keys.empty() ? 0 : count_leading(keys.first(1));
  if (count > 0) count = count_leading(keys);
  for (size_t i = count; i-- > 0;) {
    state_->host.touch(keys[i]);
    for (const auto& tier : state_->below) tier->touch(keys[i]);
  }
  return count;
}

std::vector<std::optional<Tier>> CacheStore::tiers_of(std::span<const Digest> keys,
                                                      std::span<const EntryId> wanted,
                                                      TierSet avoided) const {
  return state_->tiers_of(keys, wanted, avoided);
}

PerTier<uint64_t> CacheStore::count_by_tier(std::span<const Digest> keys,
                                            std::span<const EntryId> wanted,
                                            TierSet avoided) const {
  PerTier<uint64_t> counts{};
  if (state_->below.empty()) {  // where else
    counts[index_of(Tier::kHost)] = keys.size() * wanted.size();
    return counts;
  }
  for (std::optional<Tier> tier : tiers_of(keys, wanted, avoided)) {
    if (tier) ++counts[index_of(*tier)];
  }
  return counts;
}

std::vector<std::optional<Tier>> CacheStore::State::tiers_of(std::span<const Digest> keys,
                                                             std::span<const EntryId> wanted,
                                                             TierSet avoided) const {
  std::vector<Presence> found(keys.size() * wanted.size(), Presence::kMiss);
  std::vector<std::optional<Tier>> tiers(found.size());
  auto note = [&](Tier tier) {
    for (size_t i = 0; i < found.size(); ++i) {
      if (!tiers[i] && found[i] == Presence::kHit) tiers[i] = tier;
    }
  };
  host.look_up(keys, wanted, found);
  // What waits to be written is in memory.
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] != Presence::kHit && pin(keys[i / wanted.size()], wanted[i % wanted.size()]))
      found[i] = Presence::kHit;
  }
  note(Tier::kHost);
  for (CacheTier* tier : in_order(avoided)) {
    tier->look_up(keys, wanted, found);
    note(tier->tier());
  }
  return tiers;
}

Tier CacheStore::tier_of(std::span<const Digest> keys,
                         std::span<const EntryId> wanted,
                         TierSet avoided) const {
  PerTier<uint64_t> counts = count_by_tier(keys, wanted, avoided);
  Tier slowest = Tier::kHost;
  for (Tier tier : kAllTiers) {
    if (counts[index_of(tier)] > 0) slowest = tier;
  }
  return slowest;
}

bool CacheStore::has_tiers_to_ask() const {
  return std::ranges::any_of(state_->below,
                             [](const auto& tier) { return is_behind_link(tier->tier()); });
}

void CacheStore::ask(std::span<const Digest> keys, std::span<const EntryId> wanted) const {
  for (const auto& tier : state_->below) tier->ask(keys, wanted);
}

void CacheStore::wait_for_answers(std::span<const Digest> keys,
                                  std::span<const EntryId> wanted,
                                  std::chrono::steady_clock::time_point until) const {
  for (const auto& tier : state_->below) tier->wait_for_answers(keys, wanted, until);
}

std::vector<TierReport> CacheStore::link_reports() const {
  std::vector<TierReport> reports;
  for (const auto& tier : state_->below) {
    if (is_behind_link(tier->tier())) reports.push_back(tier->report());
  }
  return reports;
}

std::optional<LinkCost> CacheStore::link_cost_of(Tier tier,
                                                 std::span<const Digest> keys,
                                                 std::span<const TierReport> reports) const {
  auto report = std::ranges::find(reports, tier, &TierReport::tier);
  auto found =
      std::ranges::find(state_->below, tier, [](const auto& each) { return each->tier(); });
  if (report == reports.end() || found == state_->below.end()) return std::nullopt;
  return (*found)->cost_of(*report, keys);
}

std::optional<PinnedEntry> CacheStore::fetch(const Digest& key, EntryId id) {
  return state_->fetch(key, id, state_->in_order({}));
}

std::optional<PinnedEntry> CacheStore::State::fetch(const Digest& key,
                                                    EntryId id,
                                                    std::span<CacheTier* const> tiers,
                                                    ReadAhead* ahead) {
  std::optional<PinnedEntry> found = pin(key, id);
  if (found) host.count_hit(found->bytes().size());
  for (CacheTier* tier : tiers) {
    if (!found) found = read(*tier, {key, id}, ahead);
  }
  if (!found) {
    misses.fetch_add(1, std::memory_order_relaxed);
    return std::nullopt;
  }
  host.touch(key);
  for (const auto& tier : below) tier->touch(key);
  return found;
}

std::unique_ptr<ReadAhead> CacheStore::read_ahead(std::vector<EntryRead> in_order_of_need,
                                                  TierSet avoided) {
  return std::make_unique<ReadAhead>(
      ReadAheadParts{state_->host, state_->in_order(avoided), state_->arriving, state_->sizes,
                     state_->pieces_are()},
      std::move(in_order_of_need));
}

std::optional<PinnedEntry> CacheStore::fetch(const Digest& key, EntryId id, ReadAhead& ahead) {
  std::optional<PinnedEntry> arrived = ahead.take({key, id});
  if (arrived || ahead.is_stopped()) return arrived;
  return state_->fetch(key, id, ahead.tiers(), &ahead);
}

// In host memory, or waiting to be written to another tier.
std::optional<PinnedEntry> CacheStore::State::pin(const Digest& key, EntryId id) const {
  std::optional<PinnedEntry> found = host.pin(key, id);
  for (auto tier = below.begin(); !found && tier != below.end(); ++tier)
    found = (*tier)->pin(key, id);
  return found;
}

std::optional<PinnedEntry> CacheStore::State::read(CacheTier& tier,
                                                   const EntryRead& entry,
                                                   ReadAhead* ahead) {
  Presence found = Presence::kMiss;
  tier.look_up(std::span(&entry.key, 1), std::span(&entry.id, 1), std::span(&found, 1));
  if (found != Presence::kHit) return std::nullopt;
  if (ahead != nullptr) ahead->note_awaited(tier.tier());
  auto arrivals = std::make_shared<Arrivals>(
      Arrivals::Parts{host, sizes, pieces_are(), tier.tier(),
                      ahead != nullptr ? ahead->load() : arriving.next_load()},
      std::vector{entry});
  arrivals->add_wanted();
  tier.read(arrivals->entries(), arrivals);
  std::optional<PinnedEntry> arrived = arrivals->wait_for(0, kLongestRead);
  arrivals->remove_wanted();
  return arrived;
}

void CacheStore::erase(std::span<const Digest> keys) {
  for (const Digest& key : keys)
    state_->erase_everywhere([&](CacheTier& tier) { tier.erase(key); });
}

void CacheStore::erase_owned_by(const Digest& owner) {
  state_->erase_everywhere([&](CacheTier& tier) { tier.erase_owned_by(owner); });
}

void CacheStore::clear() {
  state_->erase_everywhere([](CacheTier& tier) { tier.clear(); });
}

void CacheStore::clear_host() {
  state_->host.clear();
}

void CacheStore::flush() {
  for (const auto& tier : state_->below) tier->drain();
}

StoreCounters CacheStore::counters() const {
  StoreCounters counters;
  counters.misses = state_->misses.load(std::memory_order_relaxed);
  counters.tiers.push_back(state_->host.report());
  for (const auto& tier : state_->below) counters.tiers.push_back(tier->report());
  for (const TierReport& tier : counters.tiers) {
    counters.damaged += tier.damaged;
    counters.write_errors += tier.write_errors;
    counters.dropped_writes += tier.dropped_writes;
  }
  return counters;
}

const TierReport& StoreCounters::of(Tier tier) const {
  static const TierReport kNone;
  auto found = std::ranges::find(tiers, tier, &TierReport::tier);
  return found == tiers.end() ? kNone : *found;
}

void CacheStore::check_integrity() const {
  state_->host.check_integrity();
  for (const auto& tier : state_->below) tier->check_integrity();
}

}  // namespace droidspeak
