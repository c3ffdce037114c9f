// A block file's bytes, whatever they are: parsed, and every entry of a valid header verified and
// decoded. Coded pieces have a target of their own, kv_piece_fuzz.cpp.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "base/hash.h"
#include "store/tiers/block_file.h"
#include "store/tiers/int8_codec.h"

namespace {

using namespace droidspeak;  // NOLINT(google-build-using-namespace)

// Entries of a header that was accepted lie inside the file and decode to the size they say.
void read_entries(const BlockFileHeader& header, std::span<const std::byte> file) {
  for (const BlockFileEntry& entry : header.entries) {
    std::span<const std::byte> stored = file.subspan(entry.offset, entry.stored_bytes);
    if (xxhash64(stored) != entry.checksum || entry.encoding != EntryEncoding::kInt8) continue;
    std::vector<std::byte> values(entry.bytes);
    decode_int8(header.layout, stored, values);
  }
}

void parse(std::span<const std::byte> file) {
  Result<size_t> header_bytes = header_bytes_of(file);
  Result<BlockFileHeader> header = parse_header(file, file.size());
  if (!header) return;
  if (!header_bytes || *header_bytes > file.size()) std::abort();
  read_entries(*header, file);
  // What was read can be written and read again.
  std::vector<std::byte> written = write_header(*header);
  if (!parse_header(written, header->file_bytes)) std::abort();
}

// The same bytes with the size and the checksum that belong to them, so that what lies behind these
// two checks is reached as well. The offsets are those of docs/store_format.md.
std::vector<std::byte> with_right_checksum(std::span<const std::byte> file) {
  std::vector<std::byte> fixed(file.begin(), file.end());
  uint32_t num_entries = 0;
  std::memcpy(&num_entries, fixed.data() + 12, sizeof num_entries);
  uint64_t file_bytes = fixed.size();
  std::memcpy(fixed.data() + 16, &file_bytes, sizeof file_bytes);
  size_t table_end = 128 + size_t{num_entries} * 40;
  if (table_end + 8 > fixed.size()) return fixed;
  uint64_t checksum = xxhash64(std::span(fixed).first(table_end));
  std::memcpy(fixed.data() + table_end, &checksum, sizeof checksum);
  return fixed;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto file = std::as_bytes(std::span(data, size));
  parse(file);
  if (size >= 128) parse(with_right_checksum(file));
  return 0;
}
