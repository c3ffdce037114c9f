// Blocks on disk, one file or more per block. Reads happen on the caller's thread or on several of
// its own, writes and removals on one of its own: nothing else here waits for the disk. What waits
// to be written can be read all the same. Thread-safe. Failures of the disk are misses and
// counters.
//
// Several processes may share a folder: files are never changed in place, and one that another
// process removed is a miss. Each process keeps to its own budget, counting what it wrote and what
// it found at start.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/leavable_threads.h"
#include "base/mutex.h"
#include "store/cache_key.h"
#include "store/tiers/block_writer.h"
#include "store/tiers/disk_index.h"
#include "store/tiers/file_system.h"
#include "store/tiers/open_files.h"
#include "store/tiers/read_pool.h"
#include "store/tiers/table_folder.h"
#include "store/tiers/tier.h"
#include "store/tiers/write_queue.h"

namespace droidspeak {

struct DiskTierOptions {
  std::filesystem::path folder;
  uint64_t budget_bytes = 0;
  uint64_t queue_bytes = 0;  // of blocks that wait to be written
  std::string eviction;
  BlockEncoding encoding;
  CodedModel coded_model{};  // whose K/V kCoded codes
  size_t num_readers = 0;    // threads that read, one load with all but one; 0: the caller's
};

// An entry that was found: its bytes can be read even if the file is removed meanwhile.
struct DiskEntry {
  std::shared_ptr<const OpenBlockFile> file;
  BlockFileEntry entry;
  std::string path;
  uint64_t serial = 0;  // of the file in the index
};

class DiskTier final : public CacheTier {
 public:
  // Reads the headers of the folder's files. Throws Failure when the folder cannot be used at all.
  DiskTier(const DiskTierOptions& options, FileSystem& files, const Clock& clock);
  ~DiskTier() override;  // after close(), if it was started

  // Starts writing. `owner` keeps this tier alive for a writer that hangs.
  void start(std::shared_ptr<const void> owner) override;
  // Writes what is queued. A disk on which nothing moves for `stall` is given up: its writer is
  // left behind with what it uses, and parks should it ever wake up.
  void close(std::chrono::milliseconds stall) override;

  Tier tier() const override { return Tier::kDisk; }

  ReadThread read_thread() const override {
    return options_.num_readers > 0 ? ReadThread::kOwn : ReadThread::kCaller;
  }

  // Blocks of which a read hangs are not there.
  void look_up(std::span<const Digest> keys,
               std::span<const EntryId> wanted,
               std::span<Presence> found) const override;

  // An entry on its way to the disk, in memory still.
  std::optional<PinnedEntry> pin(const Digest& key, EntryId id) const override;
  void read(std::vector<EntryRead> entries, std::shared_ptr<ReadSink> sink) override;

  void share(LoadId load, const ReadSink& sink, std::span<const size_t> indices) override {
    readers_.share(load, sink, indices);
  }

  bool has_room_to_write(uint64_t bytes) const override { return queue_.has_room(bytes); }

  // Drops and counts when the queue is full.
  void write(const BlockLabel& label, std::vector<PendingEntry> entries) override;

  void count_dropped_write() override {
    counters_.dropped_writes.fetch_add(1, std::memory_order_relaxed);
  }

  void touch(const Digest& key) override;

  // Gone at once; the files follow before anything else is written.
  void erase(const Digest& key) override;
  void erase_owned_by(const Digest& owner) override;
  void clear() override;

  void drain() override { queue_.wait_until_done(); }

  TierReport report() const override;
  void check_integrity() const override;

 private:
  struct AtomicCounters {
    std::atomic<uint64_t> hits, misses, bytes_read, bytes_written, evictions;
    std::atomic<uint64_t> damaged, write_errors, dropped_writes, read_nanoseconds;
  };

  void load_index();
  uint64_t bytes() const;
  std::optional<DiskEntry> find(const Digest& key, EntryId id);
  // Reads, verifies and decodes into `bytes` (of entry.bytes). False when it cannot be read now, or
  // is damaged: then the block is dropped.
  bool read_entry(const DiskEntry& found, std::span<std::byte> bytes);
  // The same for a piece that stays coded; nothing when false.
  std::optional<EntryCoding> read_piece(const DiskEntry& found, std::span<std::byte> piece);
  void read_one(const EntryRead& wanted, size_t index, ReadSink& sink);
  bool read_into(const DiskEntry& found, size_t index, ReadSink& sink);
  void run_writer();
  void write_batch(std::span<const std::shared_ptr<PendingWrite>> batch);
  void publish(const PendingWrite& write, const BlockImage& image);
  // False when `bytes` are more than the budget.
  bool make_room(uint64_t bytes);
  void evict_bytes(uint64_t bytes);
  void remove_files(std::span<const std::string> paths);
  void remove_unless_written_anew(std::span<const std::string> paths);
  // The file of this serial number is gone or damaged: forgets its block unless it was written
  // anew.
  void drop(const Digest& key, const std::string& path, uint64_t serial);
  bool is_as_expected(const BlockFileHeader& header, const BlockFileEntry& entry) const;
  enum class ReadResult : uint8_t { kIntact, kDamaged, kUnavailable };

  ReadResult read_decoded(const DiskEntry& found, std::span<std::byte> bytes);
  ReadResult read_stored(const DiskEntry& found, std::span<std::byte> stored);
  ReadResult find_coding(const DiskEntry& found,
                         std::span<const std::byte> piece,
                         EntryCoding& coding);
  ReadResult decode_coded(const DiskEntry& found,
                          std::span<const std::byte> piece,
                          std::span<std::byte> bytes);
  bool settle_read(const DiskEntry& found, ReadResult result, std::chrono::nanoseconds start);
  BlockImage make_image(const PendingWrite& write,
                        const std::shared_ptr<const CodecTables>& tables);

  const DiskTierOptions options_;
  FileSystem& files_;
  const Clock& clock_;
  OpenFiles open_files_;
  WriteQueue queue_;
  TableFolder tables_;
  const PieceDecoder decoder_;
  BlockWriter block_writer_;  // used by the writer thread only
  AtomicCounters counters_{};

  mutable Mutex mutex_;
  DiskIndex index_ GUARDED_BY(mutex_);  // nothing waits for the disk under its lock

  ReadPool readers_;
  LeavableThreads threads_;  // one, which writes, and those that read
};

}  // namespace droidspeak
