#include "store/tiers/disk_tier.h"

#include <algorithm>
#include <new>
#include <utility>

#include <spdlog/spdlog.h>

#include "base/check.h"
#include "base/error.h"
#include "store/tiers/cache_folder.h"
#include "store/tiers/int8_codec.h"

namespace droidspeak {
namespace {

constexpr size_t kMaxOpenFiles = 512;
constexpr uint64_t kBatchBytes = uint64_t{64} << 20;

void add(std::atomic<uint64_t>& counter, uint64_t amount) {
  counter.fetch_add(amount, std::memory_order_relaxed);
}

// One more reads for others.
size_t most_readers_of_one(const DiskTierOptions& options) {
  return std::max<size_t>(options.num_readers, 2) - 1;
}

uint64_t get(const std::atomic<uint64_t>& counter) {
  return counter.load(std::memory_order_relaxed);
}

}  // namespace

DiskTier::DiskTier(const DiskTierOptions& options, FileSystem& files, const Clock& clock)
    : options_(options),
      files_(files),
      clock_(clock),
      open_files_(files, kMaxOpenFiles),
      queue_(options.queue_bytes, clock),
      tables_(files, options.folder, options.coded_model, options.encoding.layout),
      block_writer_(files, options.folder, [this] { queue_.note_progress(); }),
      index_(make_eviction_policy(options.eviction)),
      readers_(
          [this](const EntryRead& wanted, size_t index, ReadSink& sink) {
            read_one(wanted, index, sink);
          },
          most_readers_of_one(options),
          clock),
      threads_(clock) {
  prepare_cache_folder(options_.folder);
  remove_abandoned_temporaries(options_.folder);
  load_index();
  make_room(0);
}

DiskTier::~DiskTier() = default;

void DiskTier::start(std::shared_ptr<const void> owner) {
  bool has_threads = threads_.start(owner, [this] { run_writer(); });
  for (size_t i = 0; i < options_.num_readers; ++i)
    has_threads = has_threads && threads_.start(owner, [this] { readers_.run(); });
  if (!has_threads)
    throw Failure(ErrorCode::kExhausted, "the system has no thread that could use the disk");
}

void DiskTier::close(std::chrono::milliseconds stall) {
  queue_.close();
  readers_.close();
  // Should a writer that was left behind ever come back, it takes nothing more.
  if (!threads_.end(stall, [this] { return queue_.num_steps(); })) queue_.abandon();
}

void DiskTier::load_index() {
  for (FoundBlockFile& found : find_block_files(files_, options_.folder)) {
    if (found.header && found.header->file_bytes <= options_.budget_bytes) {
      MutexLock lock(mutex_);
      index_.add(found.path, *found.header, clock_.now());
      continue;
    }
    if (!found.header) {
      ErrorCode code = found.header.error().code;
      if (code == ErrorCode::kUnavailable) continue;  // a newer program's, or unreadable
      if (code == ErrorCode::kDataCorrupt) add(counters_.damaged, 1);
    }
    (void)files_.remove(found.path);
  }
}

// The queue first: a block leaves it only after it is in the index.
void DiskTier::look_up(std::span<const Digest> keys,
                       std::span<const EntryId> wanted,
                       std::span<Presence> found) const {
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] == Presence::kHit) continue;
    const Digest& key = keys[i / wanted.size()];
    if (queue_.find(key, wanted[i % wanted.size()])) found[i] = Presence::kHit;
  }
  const std::vector<Digest> hanging = readers_.hanging();
  MutexLock lock(mutex_);
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] == Presence::kHit) continue;
    const Digest& key = keys[i / wanted.size()];
    if (std::ranges::find(hanging, key) != hanging.end()) continue;
    if (index_.find(key, wanted[i % wanted.size()]) != nullptr) found[i] = Presence::kHit;
  }
}

std::optional<PinnedEntry> DiskTier::pin(const Digest& key, EntryId id) const {
  std::optional<PendingEntry> found = queue_.find(key, id);
  if (!found) return std::nullopt;
  return PinnedEntry(std::move(found->owner), found->bytes, Tier::kHost);
}

void DiskTier::read(std::vector<EntryRead> entries, std::shared_ptr<ReadSink> sink) {
  if (options_.num_readers > 0) return readers_.add(std::move(entries), std::move(sink));
  for (size_t i = 0; i < entries.size(); ++i) read_one(entries[i], i, *sink);
}

void DiskTier::read_one(const EntryRead& wanted, size_t index, ReadSink& sink) {
  try {
    std::optional<DiskEntry> found;
    if (sink.is_wanted()) found = find(wanted.key, wanted.id);
    if (found && read_into(*found, index, sink)) return;
  } catch (const std::bad_alloc&) {
    spdlog::warn("a cache entry is not read: there is no memory for it");
  }
  add(counters_.misses, 1);
  sink.done(index, nullptr);
}

bool DiskTier::read_into(const DiskEntry& found, size_t index, ReadSink& sink) {
  const BlockFileHeader& header = found.file->header;
  BlockLabel label{header.key, header.owner, header.position};
  if (found.entry.encoding == EntryEncoding::kCoded) {
    std::span<std::byte> piece = sink.room_for_piece(index, found.entry.stored_bytes);
    if (!piece.empty()) {
      std::optional<EntryCoding> coding = read_piece(found, piece);
      if (coding) sink.done_piece(index, label, std::move(*coding));
      return coding.has_value();
    }
  }
  std::span<std::byte> into = sink.room(index, found.entry.bytes);
  if (into.size() != found.entry.bytes || !read_entry(found, into)) return false;
  sink.done(index, &label);
  return true;
}

void DiskTier::write(const BlockLabel& label, std::vector<PendingEntry> entries) {
  if (!queue_.push(label, std::move(entries))) count_dropped_write();
}

std::optional<DiskEntry> DiskTier::find(const Digest& key, EntryId id) {
  std::string path;
  uint64_t serial = 0;
  {
    MutexLock lock(mutex_);
    const DiskFile* found = index_.find(key, id);
    if (found == nullptr) return std::nullopt;
    path = found->path;
    serial = found->serial;
  }
  Result<std::shared_ptr<const OpenBlockFile>> file = open_files_.open(path, key);
  if (!file) {
    ErrorCode code = file.error().code;
    if (code == ErrorCode::kDataCorrupt) add(counters_.damaged, 1);
    if (code == ErrorCode::kDataCorrupt || code == ErrorCode::kNotFound) {
      drop(key, path, serial);
    }
    return std::nullopt;
  }
  const BlockFileEntry* entry = (*file)->header.find(id);
  if (entry == nullptr) return std::nullopt;
  if (!is_as_expected((*file)->header, *entry)) {
    add(counters_.damaged, 1);
    drop(key, path, serial);
    return std::nullopt;
  }
  return DiskEntry{*file, *entry, std::move(path), serial};
}

// The key stands for one layout: a file that says otherwise is wrong, however consistent.
bool DiskTier::is_as_expected(const BlockFileHeader& header, const BlockFileEntry& entry) const {
  const BlockEncoding& ours = options_.encoding;
  bool is_our_layout = ours.layout.num_layers == 0 || header.layout == ours.layout;
  return is_our_layout && ours.has_size(entry.id, entry.bytes);
}

bool DiskTier::read_entry(const DiskEntry& found, std::span<std::byte> bytes) {
  check(bytes.size() == found.entry.bytes, "the buffer has the entry's size");
  std::chrono::nanoseconds start = clock_.now();
  return settle_read(found, read_decoded(found, bytes), start);
}

std::optional<EntryCoding> DiskTier::read_piece(const DiskEntry& found,
                                                std::span<std::byte> piece) {
  std::chrono::nanoseconds start = clock_.now();
  EntryCoding coding;
  ReadResult result = read_stored(found, piece);
  if (result == ReadResult::kIntact) result = find_coding(found, piece, coding);
  if (result == ReadResult::kIntact && !check_piece(coding, piece)) result = ReadResult::kDamaged;
  if (!settle_read(found, result, start)) return std::nullopt;
  return coding;
}

bool DiskTier::settle_read(const DiskEntry& found,
                           ReadResult result,
                           std::chrono::nanoseconds start) {
  if (result == ReadResult::kDamaged) {
    add(counters_.damaged, 1);
    drop(found.file->header.key, found.path, found.serial);
  }
  if (result != ReadResult::kIntact) return false;
  add(counters_.hits, 1);
  add(counters_.bytes_read, found.entry.stored_bytes);
  add(counters_.read_nanoseconds, static_cast<uint64_t>((clock_.now() - start).count()));
  return true;
}

DiskTier::ReadResult DiskTier::read_decoded(const DiskEntry& found, std::span<std::byte> bytes) {
  if (found.entry.encoding == EntryEncoding::kRaw) return read_stored(found, bytes);
  auto memory = std::make_unique_for_overwrite<std::byte[]>(found.entry.stored_bytes);
  std::span<std::byte> stored(memory.get(), found.entry.stored_bytes);
  ReadResult result = read_stored(found, stored);
  if (result != ReadResult::kIntact) return result;
  if (found.entry.encoding == EntryEncoding::kCoded) return decode_coded(found, stored, bytes);
  decode_int8(found.file->header.layout, stored, bytes);
  return ReadResult::kIntact;
}

// Tables may come back, or be those of a newer program: only the piece itself can be damaged.
DiskTier::ReadResult DiskTier::find_coding(const DiskEntry& found,
                                           std::span<const std::byte> piece,
                                           EntryCoding& coding) {
  std::optional<TablesName> name = tables_of_piece(piece);
  if (!name) return ReadResult::kDamaged;
  const BlockFileHeader& header = found.file->header;
  coding = {
      tables_.find(*name), header.layout, {found.entry.id.layer, header.position * kBlockTokens}};
  bool is_known = coding.tables && coding.tables->fit(header.layout);
  return is_known ? ReadResult::kIntact : ReadResult::kUnavailable;
}

DiskTier::ReadResult DiskTier::decode_coded(const DiskEntry& found,
                                            std::span<const std::byte> piece,
                                            std::span<std::byte> bytes) {
  EntryCoding coding;
  ReadResult known = find_coding(found, piece, coding);
  if (known != ReadResult::kIntact) return known;
  Result<void> decoded = decoder_.decode(*coding.tables, coding.layout, coding.label, piece, bytes);
  return decoded ? ReadResult::kIntact : ReadResult::kDamaged;
}

DiskTier::ReadResult DiskTier::read_stored(const DiskEntry& found, std::span<std::byte> stored) {
  Result<size_t> got = files_.read(found.file->file, found.entry.offset, stored);
  if (!got) return ReadResult::kUnavailable;
  bool is_intact = *got == stored.size() && xxhash64(stored) == found.entry.checksum;
  return is_intact ? ReadResult::kIntact : ReadResult::kDamaged;
}

void DiskTier::touch(const Digest& key) {
  MutexLock lock(mutex_);
  index_.touch(key, clock_.now());
}

// A block may be written again, under the same name, as soon as it is out of the index: its files
// are handed to the writer within the same lock, who removes them before that.
void DiskTier::erase(const Digest& key) {
  queue_.cancel(key);
  MutexLock lock(mutex_);
  queue_.push_removals(index_.remove(key));
}

void DiskTier::erase_owned_by(const Digest& owner) {
  queue_.cancel_owned_by(owner);
  MutexLock lock(mutex_);
  for (const Digest& key : index_.keys_owned_by(owner)) queue_.push_removals(index_.remove(key));
}

void DiskTier::clear() {
  queue_.cancel_all();
  MutexLock lock(mutex_);
  for (const Digest& key : index_.keys()) queue_.push_removals(index_.remove(key));
}

void DiskTier::drop(const Digest& key, const std::string& path, uint64_t serial) {
  open_files_.close(path);
  MutexLock lock(mutex_);
  queue_.push_removals(index_.remove_if_unchanged(key, serial));
}

// Two threads may have put the same block: one file was dropped, and the other is in its place.
void DiskTier::remove_unless_written_anew(std::span<const std::string> paths) {
  std::vector<std::string> gone;
  for (const std::string& path : paths) {
    std::filesystem::path file(path);
    auto key = key_of_block_file(file.parent_path().filename().string(), file.filename().string());
    MutexLock lock(mutex_);
    if (!key || !index_.has_file(*key, path)) gone.push_back(path);
  }
  remove_files(gone);
}

void DiskTier::remove_files(std::span<const std::string> paths) {
  for (const std::string& path : paths) {
    open_files_.close(path);
    (void)files_.remove(path);  // another process may have been faster
    queue_.note_progress();
  }
}

bool DiskTier::make_room(uint64_t bytes) {
  if (bytes > options_.budget_bytes) return false;
  uint64_t used = this->bytes();
  if (used + bytes > options_.budget_bytes) evict_bytes(used + bytes - options_.budget_bytes);
  return true;
}

void DiskTier::evict_bytes(uint64_t bytes) {
  std::vector<std::string> paths;
  {
    MutexLock lock(mutex_);
    uint64_t target = index_.bytes() > bytes ? index_.bytes() - bytes : 0;
    while (index_.bytes() > target) {
      std::vector<std::string> evicted = index_.evict();
      paths.insert(paths.end(), evicted.begin(), evicted.end());
      add(counters_.evictions, 1);
    }
  }
  remove_files(paths);
}

void DiskTier::run_writer() {
  uint64_t batch_bytes = std::min(kBatchBytes, options_.budget_bytes / 4);
  while (true) {
    DiskWork work = queue_.take(batch_bytes);
    if (work.is_empty()) return;
    remove_unless_written_anew(work.removals);
    write_batch(work.writes);
    queue_.done(std::move(work));
  }
}

void DiskTier::write_batch(std::span<const std::shared_ptr<PendingWrite>> batch) {
  std::vector<BlockImage> images;
  std::vector<const PendingWrite*> writes;
  uint64_t bytes = 0;
  std::shared_ptr<const CodecTables> tables;
  if (options_.encoding.encoding == EntryEncoding::kCoded) tables = tables_.for_writing(batch);
  for (const std::shared_ptr<PendingWrite>& write : batch) {
    if (write->is_cancelled) continue;
    BlockImage image = make_image(*write, tables);
    uint64_t image_bytes = disk_bytes_of(image.header.file_bytes);
    if (!make_room(bytes + image_bytes)) {
      count_dropped_write();
      continue;
    }
    bytes += image_bytes;
    images.push_back(std::move(image));
    writes.push_back(write.get());
  }
  std::vector<Result<void>> results = block_writer_.write(images);
  for (size_t i = 0; i < images.size(); ++i) {
    if (!results[i] && results[i].error().code == ErrorCode::kExhausted) {
      // The disk is fuller than the budget knows: give up as much of ours and try once more.
      evict_bytes(2 * disk_bytes_of(images[i].header.file_bytes));
      results[i] = block_writer_.write(std::span(images).subspan(i, 1)).front();
    }
    if (results[i]) {
      publish(*writes[i], images[i]);
    } else {
      add(counters_.write_errors, 1);
    }
  }
}

// Coding takes longer than most disks: before blocks are dropped, they are stored raw.
BlockImage DiskTier::make_image(const PendingWrite& write,
                                const std::shared_ptr<const CodecTables>& tables) {
  BlockEncoding encoding = options_.encoding;
  if (tables && !queue_.is_more_than_half_full()) encoding.tables = tables;
  BlockImage image = make_block_image(write, encoding);
  if (!encoding.tables) return image;
  size_t num_coded = 0;
  size_t num_raw = 0;
  for (const BlockFileEntry& entry : image.header.entries) {
    if (entry.id.kind != EntryKind::kKeyValue) continue;
    ++(entry.encoding == EntryEncoding::kCoded ? num_coded : num_raw);
  }
  tables_.note_stored(num_coded, num_raw);
  return image;
}

void DiskTier::publish(const PendingWrite& write, const BlockImage& image) {
  std::string path = (options_.folder / image.name).string();
  add(counters_.bytes_written, image.header.file_bytes);
  open_files_.close(path);  // a file of the same name may have been open
  {
    MutexLock lock(mutex_);
    if (!write.is_cancelled) {
      index_.add(path, image.header, write.put_at);
      return;
    }
  }
  (void)files_.remove(path);
}

TierReport DiskTier::report() const {
  TierReport report{.tier = Tier::kDisk,
                    .hits = get(counters_.hits),
                    .misses = get(counters_.misses),
                    .bytes_read = get(counters_.bytes_read),
                    .bytes_written = get(counters_.bytes_written),
                    .evictions = get(counters_.evictions),
                    .capacity_bytes = options_.budget_bytes,
                    .damaged = get(counters_.damaged),
                    .write_errors = get(counters_.write_errors),
                    .dropped_writes = get(counters_.dropped_writes),
                    .read_seconds = static_cast<double>(get(counters_.read_nanoseconds)) * 1e-9};
  MutexLock lock(mutex_);
  report.entries = index_.num_blocks();
  report.bytes = index_.bytes();
  return report;
}

uint64_t DiskTier::bytes() const {
  MutexLock lock(mutex_);
  return index_.bytes();
}

void DiskTier::check_integrity() const {
  MutexLock lock(mutex_);
  index_.check_integrity();
  check(index_.bytes() <= options_.budget_bytes, "the disk tier stays in its budget");
}

}  // namespace droidspeak
