// The file of one block on disk: a header that lists the entries, then their bytes. Written down in
// docs/store_format.md. Parsing trusts nothing: any byte string gives either a header whose numbers
// are consistent with each other and with the file's size, or an error that says what is wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "kv/kv_cache.h"
#include "store/cache_key.h"

namespace droidspeak {

enum class EntryEncoding : uint8_t { kRaw = 0, kInt8 = 1, kCoded = 2 };

struct BlockFileEntry {
  EntryId id{};
  EntryEncoding encoding = EntryEncoding::kRaw;
  uint64_t offset = 0;        // from the start of the file, a multiple of kEntryAlignment
  uint64_t stored_bytes = 0;  // in the file
  uint64_t bytes = 0;         // after decoding
  uint64_t checksum = 0;      // xxHash of the stored bytes
};

struct BlockFileHeader {
  Digest key;
  Digest owner;                         // who wrote it: see BlockLabel
  uint32_t position = 0;                // of the block in its context
  KvLayout layout;                      // num_layers 0: not known
  std::vector<BlockFileEntry> entries;  // by id, ascending, no two alike
  uint64_t file_bytes = 0;

  const BlockFileEntry* find(EntryId id) const;
};

// A file has the oldest version that knows all its encodings: 3 with coded entries, else 2.
inline constexpr uint32_t kOldestBlockFileVersion = 2;
inline constexpr uint32_t kNewestBlockFileVersion = 3;
inline constexpr size_t kEntryAlignment = 64;
inline constexpr size_t kHeaderAlignment = 4096;
inline constexpr size_t kMaxEntries = 4096;

// Bytes of the header with its padding: where the first entry starts.
size_t header_bytes(size_t num_entries);
// Sets the offsets and file_bytes from the entries' stored_bytes, in order.
void place_entries(BlockFileHeader& header);
std::vector<std::byte> write_header(const BlockFileHeader& header);

// How many bytes to read for the whole header, judged by the first kHeaderAlignment bytes of a file
// (or all of a shorter one).
Result<size_t> header_bytes_of(std::span<const std::byte> start);
// `bytes` holds at least the header; `file_bytes` is the size of the whole file. kUnavailable for a
// newer version than this program knows, kNotFound for an older one, kDataCorrupt for everything
// else.
Result<BlockFileHeader> parse_header(std::span<const std::byte> bytes, uint64_t file_bytes);

// Name relative to the cache folder: "ab/cdef...-0123456789abcdef.kv". It depends on the key and on
// which entries are inside, so that processes that store the same thing write the same file, and
// one with other entries of the same block never replaces it.
std::string block_file_name(const BlockFileHeader& header);
// The key in such a name; nothing when it is not a block file's name.
std::optional<Digest> key_of_block_file(const std::string& folder, const std::string& name);

}  // namespace droidspeak
