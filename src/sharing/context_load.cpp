#include "sharing/context_load.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "codec/device_decoder.h"

namespace droidspeak {
namespace {

// An entry of 64 tokens takes well under a millisecond from host memory and a few from a disk.
constexpr std::chrono::milliseconds kArriving{20};
constexpr std::chrono::milliseconds kLongestWait{20};
// Copied by a lane at a time: what the compute stream copies itself (E, tokens, block tables)
// queues behind it on the bus.
constexpr size_t kPieceBytes = size_t{8} << 20;
// Values of coded blocks that the device decodes at a time: it takes many to keep it busy.
constexpr size_t kDecodedBytes = size_t{64} << 20;

}  // namespace

ContextLoad::ContextLoad(Device& device,
                         KvCache& kv,
                         std::shared_ptr<CacheStore> store,
                         LoadJob job)
    : kv_(kv),
      is_asynchronous_(device.kind() != DeviceKind::kCpu),
      store_(std::move(store)),
      job_(std::move(job)),
      layers_(job_.stored.loaded_layers(kv.layout().num_layers)),
      input_layer_(job_.stored.input_layer()),
      layer_bytes_(kv.layout().layer_bytes()),
      total_bytes_(job_.blocks.size() *
                   (layers_.size() * layer_bytes_ + (input_layer_ >= 0 ? job_.input_bytes : 0))),
      started_(std::chrono::steady_clock::now()),
      lanes_{device.make_copy_lane(), device.make_copy_lane()},
      layer_events_(static_cast<size_t>(kv.layout().num_layers)),
      pace_(job_.limits,
            total_bytes_,
            static_cast<int32_t>(job_.blocks.size()) * kBlockTokens,
            started_),
      last_arrival_(started_) {
  check(job_.stored.num_blocks() == job_.blocks.size(), "a key for every block");
  inputs_.reserve(job_.blocks.size());
}

void ContextLoad::run() {
  try {
    bool is_complete = begin_reading();
    for (Span span : spans()) {
      if (is_complete) is_complete = load(span);
    }
    if (is_complete) finish();
  } catch (const std::exception& exception) {
    MutexLock lock(mutex_);
    is_finishing_ = false;
    fail(LoadFailure::Reason::kMissing, exception.what());
  }
  tell();
}

std::vector<ContextLoad::Span> ContextLoad::spans() const {
  const size_t num_blocks = job_.blocks.size();
  const size_t together = job_.blocks_together > 0 ? job_.blocks_together : num_blocks;
  std::vector<Span> spans;
  for (size_t first = 0; first < num_blocks; first += together)
    spans.push_back({first, std::min(first + together, num_blocks)});
  return spans;
}

// E of the transition layer first, then layers in the order of need.
bool ContextLoad::load(Span span) {
  if (input_layer_ >= 0 && !load_inputs(span)) return false;
  for (int32_t layer : layers_) {
    if (!load_layer(layer, span)) return false;
  }
  note_whole(span);
  return true;
}

// What is whole is of use whatever becomes of the rest: it is on the device.
void ContextLoad::note_whole(Span span) {
  MutexLock lock(mutex_);
  if (is_stopping_) return;
  whole_blocks_ = span.end;
  pace_.note_whole(static_cast<int32_t>(whole_blocks_) * kBlockTokens);
}

// Everything is queued: waits for the last copies.
void ContextLoad::finish() {
  for (size_t lane = 0; lane < kLanes; ++lane) {
    if (!wait_for_lane(lane)) return;
  }
  MutexLock lock(mutex_);
  load_ms_ = watch_.ms();
}

// Waits without the lock, so that layers can be computed meanwhile. False after stop().
bool ContextLoad::wait_for_lane(size_t lane) {
  {
    MutexLock lock(mutex_);
    if (is_stopping_) return false;
    is_finishing_ = true;
  }
  lanes_[lane]->synchronize();
  MutexLock lock(mutex_);
  is_finishing_ = false;
  copying_[lane].clear();
  changed_.notify_all();
  return !is_stopping_;
}

void ContextLoad::stop() {
  MutexLock lock(mutex_);
  is_stopping_ = true;
  if (ahead_) ahead_->stop();
  while (is_finishing_ || is_telling_) changed_.wait(mutex_);
  if (is_stopped_) return;
  is_stopped_ = true;
  layer_events_.clear();
  for (size_t lane = 0; lane < kLanes; ++lane) {
    try {
      lanes_[lane]->synchronize();  // copies that were queued before
    } catch (const std::exception&) {
      // A broken device says so at the next thing it is asked for.
    }
    copying_[lane].clear();
    lanes_[lane].reset();  // the device may be gone before this object is
  }
}

std::vector<EntryId> ContextLoad::wanted_entries() const {
  std::vector<EntryId> wanted;
  if (input_layer_ >= 0) wanted.push_back({EntryKind::kLayerInput, input_layer_});
  for (int32_t layer : layers_) wanted.push_back({EntryKind::kKeyValue, layer});
  return wanted;
}

bool ContextLoad::begin_reading() {
  std::vector<EntryRead> wanted;
  for (Span span : spans()) {
    for (EntryId id : wanted_entries()) {
      for (size_t block = span.first; block < span.end; ++block)
        wanted.push_back({job_.stored.key_of(block, id.layer), id});
    }
  }
  std::unique_ptr<ReadAhead> ahead = store_->read_ahead(std::move(wanted), job_.stored.avoided);
  reading_ = ahead.get();
  MutexLock lock(mutex_);
  ahead_ = std::move(ahead);
  return !is_stopping_;
}

bool ContextLoad::load_inputs(Span span) {
  for (size_t block = span.first; block < span.end; ++block) {
    auto entry = fetch(block, {EntryKind::kLayerInput, input_layer_});
    if (!entry) return false;
    {
      MutexLock lock(mutex_);
      if (is_stopping_) return false;
      inputs_.push_back(std::move(*entry));
      note_progress();
    }
    tell();
  }
  return true;
}

// While one lane copies a piece the next is fetched and given to the other, so that the bus never
// waits; what is copied from stays pinned until the lane is done with it. On the CPU a copy is done
// when the call returns.
bool ContextLoad::load_layer(int32_t layer, Span span) {
  std::vector<PinnedEntry> piece;
  size_t bytes = 0;
  size_t first = span.first;
  for (size_t block = span.first; block < span.end; ++block) {
    auto entry = fetch(block, {EntryKind::kKeyValue, layer});
    if (!entry) return false;
    bytes += entry->value_bytes();
    const size_t most_bytes = entry->coding() == nullptr ? kPieceBytes : kDecodedBytes;
    piece.push_back(std::move(*entry));
    bool is_last = block + 1 == span.end;
    if (is_asynchronous_ && bytes < most_bytes && !is_last) continue;
    if (!copy_piece(layer, first, piece)) return false;
    piece.clear();
    bytes = 0;
    first = block + 1;
  }
  if (span.end < job_.blocks.size()) return true;
  {
    MutexLock lock(mutex_);
    if (is_stopping_) return false;
    for (const auto& lane : lanes_)
      layer_events_[static_cast<size_t>(layer)].push_back(lane->record());
    ++loaded_layers_;
    load_ms_ = watch_.ms();
    note_progress();
  }
  tell();
  return true;
}

// Entries of consecutive blocks from `first_block` on.
bool ContextLoad::copy_piece(int32_t layer, size_t first_block, std::vector<PinnedEntry>& entries) {
  const size_t lane = num_pieces_++ % kLanes;
  if (is_asynchronous_ && !wait_for_lane(lane)) return false;
  if (!decode_pieces(layer, first_block, entries)) return false;
  MutexLock lock(mutex_);
  if (is_stopping_) return false;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].coding() != nullptr) continue;
    kv_.load(*lanes_[lane], layer, job_.blocks[first_block + i], entries[i].bytes());
    if (is_asynchronous_) copying_[lane].push_back(std::move(entries[i]));
  }
  return true;
}

// Those that are coded: waits until the device has made values of them, without the lock, since
// only then is known whether they are whole. One that is not is a miss, and forgotten.
bool ContextLoad::decode_pieces(int32_t layer,
                                size_t first_block,
                                std::span<const PinnedEntry> entries) {
  std::vector<CodedBlock> pieces;
  std::vector<size_t> numbers;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].coding() == nullptr) continue;
    numbers.push_back(first_block + i);
    pieces.push_back({.piece = entries[i].bytes(),
                      .tables = entries[i].coding()->tables,
                      .first_position = static_cast<uint32_t>(numbers.back()) * kBlockTokens,
                      .block = job_.blocks[numbers.back()]});
  }
  if (pieces.empty()) return true;
  {
    MutexLock lock(mutex_);
    if (is_stopping_) return false;
    is_finishing_ = true;
  }
  Stopwatch watch;
  std::optional<size_t> damaged = store_->decoder()->decode(layer, kv_.layer(layer), pieces);
  if (damaged) forget(job_.stored.key_of(numbers[*damaged], layer));
  MutexLock lock(mutex_);
  times_.decode_ms += watch.ms();
  is_finishing_ = false;
  changed_.notify_all();
  if (damaged && !is_stopping_) {
    fail(LoadFailure::Reason::kMissing,
         fmt::format("block {} of layer {} is coded wrongly", numbers[*damaged], layer));
  }
  return !is_stopping_;
}

size_t ContextLoad::expected_bytes(EntryId id) const {
  return id.kind == EntryKind::kKeyValue ? layer_bytes_ : job_.input_bytes;
}

// An entry of another size is a miss; its block is forgotten, so that it can be stored again.
std::optional<PinnedEntry> ContextLoad::fetch(size_t block, EntryId id) {
  const Digest& key = job_.stored.key_of(block, id.layer);
  {
    MutexLock lock(mutex_);
    awaited_ = EntryRead{key, id};
  }
  Stopwatch watch;
  auto entry = store_->fetch(key, id, *reading_);
  std::string what = "missing or damaged";
  if (entry && entry->value_bytes() != expected_bytes(id)) {
    what = fmt::format("{} bytes long: it should be {}", entry->value_bytes(), expected_bytes(id));
    forget(key);
    entry.reset();
  }
  MutexLock lock(mutex_);
  times_.fetch_ms += watch.ms();
  if (is_stopping_) return std::nullopt;
  if (entry) {
    note_arrival(*entry);
  } else {
    fail(LoadFailure::Reason::kMissing,
         fmt::format("block {} of layer {} is {}", block, id.layer, what));
  }
  return entry;
}

void ContextLoad::note_arrival(const PinnedEntry& entry) {
  last_arrival_ = std::chrono::steady_clock::now();
  loaded_bytes_ += entry.value_bytes();
  slowest_tier_ = std::max(slowest_tier_, entry.tier());
}

void ContextLoad::note_progress() {
  ++progress_;
  changed_.notify_all();
}

// Of several tiers that a load reads from not the slowest need be the one that has stalled. One
// that has lost the entry since is still the one that was waited for.
Tier ContextLoad::awaited_tier() const {
  if (!awaited_) return Tier::kHost;
  if (std::optional<Tier> tier = ahead_ ? ahead_->awaited_tier() : std::nullopt) return *tier;
  return store_->tier_of(std::span(&awaited_->key, 1), std::span(&awaited_->id, 1),
                         job_.stored.avoided);
}

void ContextLoad::fail(LoadFailure::Reason reason, std::string text) {
  if (!failure_) failure_ = LoadFailure{reason, std::move(text), awaited_tier()};
  load_ms_ = watch_.ms();
  is_stopping_ = true;
  note_progress();
}

// Not under the lock: whoever is told may ask back.
void ContextLoad::tell() {
  if (!job_.on_progress) return;
  {
    MutexLock lock(mutex_);
    if (is_stopped_) return;
    is_telling_ = true;
  }
  job_.on_progress();
  MutexLock lock(mutex_);
  is_telling_ = false;
  changed_.notify_all();
}

uint64_t ContextLoad::progress() const {
  MutexLock lock(mutex_);
  return progress_;
}

void ContextLoad::wait_past(uint64_t seen) const {
  MutexLock lock(mutex_);
  if (progress_ == seen) changed_.wait_for(mutex_, kLongestWait);
}

int32_t ContextLoad::input_blocks() const {
  MutexLock lock(mutex_);
  return static_cast<int32_t>(inputs_.size());
}

std::span<const std::byte> ContextLoad::input(int32_t block) const {
  MutexLock lock(mutex_);
  return inputs_.at(static_cast<size_t>(block)).bytes();
}

size_t ContextLoad::whole_blocks() const {
  MutexLock lock(mutex_);
  return whole_blocks_;
}

bool ContextLoad::is_arriving() const {
  MutexLock lock(mutex_);
  return !is_stopping_ && std::chrono::steady_clock::now() - last_arrival_ < kArriving;
}

std::span<const std::unique_ptr<Event>> ContextLoad::layer_events(int32_t layer) const {
  MutexLock lock(mutex_);
  if (is_stopped_) return {};
  return layer_events_[static_cast<size_t>(layer)];
}

bool ContextLoad::is_loaded() const {
  MutexLock lock(mutex_);
  return loaded_layers_ == layers_.size();
}

std::optional<LoadFailure> ContextLoad::failure() {
  MutexLock lock(mutex_);
  if (failure_ || is_stopping_ || loaded_bytes_ == total_bytes_) return failure_;
  auto now = std::chrono::steady_clock::now();
  // Layers lie together in groups: what was read ahead with those before it has arrived as well.
  pace_.note_arrived(loaded_bytes_ + (ahead_ ? ahead_->held_bytes() : 0), now);
  if (std::optional<std::string> reason = pace_.reason_to_stop(now))
    fail(LoadFailure::Reason::kStalled, std::move(*reason));
  return failure_;
}

double ContextLoad::elapsed_seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

double ContextLoad::load_ms() const {
  MutexLock lock(mutex_);
  return load_ms_;
}

LoadTimes ContextLoad::times() const {
  MutexLock lock(mutex_);
  return times_;
}

uint64_t ContextLoad::loaded_bytes() const {
  MutexLock lock(mutex_);
  return loaded_bytes_;
}

Tier ContextLoad::slowest_tier() const {
  MutexLock lock(mutex_);
  return slowest_tier_;
}

}  // namespace droidspeak
