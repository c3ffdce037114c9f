// Puts blocks on disk so that a reader, or a crash at any moment, never sees half of one: temporary
// name, sync, rename, sync of the folders. A batch shares the syncs of its folders. Used by one
// thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "store/tiers/block_file.h"
#include "store/tiers/file_system.h"
#include "store/tiers/write_queue.h"

namespace droidspeak {

// A block as it will lie on disk. Its bytes are the pending write's, or encoded ones of its own.
struct BlockImage {
  BlockFileHeader header;
  std::string name;                                // relative to the cache folder
  std::vector<std::span<const std::byte>> stored;  // one per entry
  std::vector<std::unique_ptr<std::byte[]>> encoded;
};

struct BlockEncoding {
  EntryEncoding encoding = EntryEncoding::kRaw;  // of K/V; layer inputs stay as they are
  KvLayout layout;                               // num_layers 0: not known
};

// Encodes and checksums. `write` outlives the image.
BlockImage make_block_image(const PendingWrite& write, const BlockEncoding& encoding);

class BlockWriter {
 public:
  BlockWriter(FileSystem& files, std::filesystem::path folder);

  // One result per image; what failed leaves nothing behind.
  std::vector<Result<void>> write(std::span<const BlockImage> images);

 private:
  struct Step;
  Result<void> write_temporary(const BlockImage& image, Step& step);
  Result<void> finish(const BlockImage& image, Step& step);
  void sync_folders(std::vector<Step>& steps);

  FileSystem& files_;
  const std::filesystem::path folder_;
  const std::string writer_name_;  // differs from every other writer's on this folder
  uint64_t num_temporaries_ = 0;
};

// Where temporaries lie.
std::filesystem::path temporary_folder(const std::filesystem::path& cache_folder);

}  // namespace droidspeak
