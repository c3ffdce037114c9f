// A cache folder as a whole: finding its block files, clearing up after dead writers, verifying it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "store/tiers/block_file.h"
#include "store/tiers/file_system.h"

namespace droidspeak {

struct FoundBlockFile {
  std::string path;
  Digest key;
  std::filesystem::file_time_type written;
  Result<BlockFileHeader> header;
};

// Makes the folder and the one for temporaries, private to us. Throws Failure when it is not a
// folder, cannot be made, or others may enter it (see narrow_cache_folder()); a folder that is
// there but cannot be written is fine.
void prepare_cache_folder(const std::filesystem::path& folder);
// Removes temporaries whose writer is dead.
void remove_abandoned_temporaries(const std::filesystem::path& folder);
// Every block file, oldest first and, of those written within a second, the last position first.
// Reads headers only.
std::vector<FoundBlockFile> find_block_files(FileSystem& files,
                                             const std::filesystem::path& folder);

}  // namespace droidspeak
