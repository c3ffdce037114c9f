// Puts blocks on disk so that a reader, or a crash at any moment, never sees half of one: temporary
// name, sync, rename, sync of the folders. A batch shares the syncs of its folders, and has few
// files open at a time. Used by one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "codec/tables.h"
#include "store/tiers/block_file.h"
#include "store/tiers/file_system.h"
#include "store/tiers/write_queue.h"

namespace droidspeak {

// A block as it will lie on disk. Its bytes are the pending write's, or encoded ones of its own.
struct BlockImage {
  BlockFileHeader header;
  std::string name;                                // relative to the cache folder
  std::vector<std::span<const std::byte>> stored;  // one per entry
  std::vector<std::vector<std::byte>> encoded;
};

EntryEncoding encoding_of(DiskFormat format);

struct BlockEncoding {
  EntryEncoding encoding = EntryEncoding::kRaw;  // of K/V; layer inputs stay as they are
  KvLayout layout;                               // num_layers 0: not known
  size_t input_bytes = 0;                        // of one layer's input; 0: not known
  std::shared_ptr<const CodecTables> tables{};   // kCoded stores raw without

  // Of an entry of this layout; nothing: not known.
  std::optional<size_t> size_of(EntryId id) const;
  // Whether this is what an entry of this layout looks like. Anything will do for an unknown one.
  bool has_size(EntryId id, size_t bytes) const;
};

// Encodes and checksums. `write` outlives the image.
BlockImage make_block_image(const PendingWrite& write, const BlockEncoding& encoding);

class BlockWriter {
 public:
  // `on_progress` is called after each step that the disk has taken.
  BlockWriter(FileSystem& files, std::filesystem::path folder, std::function<void()> on_progress);

  // One result per image; what failed leaves nothing behind.
  std::vector<Result<void>> write(std::span<const BlockImage> images);

 private:
  struct Step;
  void write_files(std::span<const BlockImage> images, std::span<Step> steps);
  Result<void> write_temporary(const BlockImage& image, Step& step);
  Result<void> write_pieces(const FileHandle& file,
                            std::span<const std::span<const std::byte>> pieces);
  Result<void> finish(const BlockImage& image, Step& step);
  void sync_folders(std::vector<Step>& steps);

  FileSystem& files_;
  const std::filesystem::path folder_;
  const std::function<void()> on_progress_;
  const std::string writer_name_;  // differs from every other writer's on this folder
  uint64_t num_temporaries_ = 0;
};

// Where temporaries lie.
std::filesystem::path temporary_folder(const std::filesystem::path& cache_folder);

}  // namespace droidspeak
