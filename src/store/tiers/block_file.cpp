#include "store/tiers/block_file.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "store/tiers/int8_codec.h"

namespace droidspeak {
namespace {

constexpr std::array<char, 8> kMagic = {'D', 'S', 'B', 'L', 'O', 'C', 'K', '\n'};
constexpr size_t kFixedBytes = 128;
constexpr size_t kEntryBytes = 40;
constexpr size_t kChecksumBytes = 8;

struct FixedHeader {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t num_entries;
  uint64_t file_bytes;
  std::array<uint8_t, 32> key;
  std::array<uint8_t, 32> owner;
  uint32_t position;
  uint32_t num_layers;
  uint32_t num_kv_heads;
  uint32_t head_dim;
  uint32_t block_tokens;
  std::array<char, 12> dtype;  // name, filled up with zeros
  uint64_t reserved;
};

static_assert(sizeof(FixedHeader) == kFixedBytes);

struct EntryRecord {
  uint8_t kind;
  uint8_t encoding;
  uint16_t reserved;
  int32_t layer;
  uint64_t offset;
  uint64_t stored_bytes;
  uint64_t bytes;
  uint64_t checksum;
};

static_assert(sizeof(EntryRecord) == kEntryBytes);

uint64_t round_up(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

Error corrupt(std::string message) {
  return {ErrorCode::kDataCorrupt, std::move(message)};
}

std::optional<DType> dtype_of(const std::array<char, 12>& name) {
  std::string_view text(name.data(), strnlen(name.data(), name.size()));
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
    if (name_of(dtype) == text) return dtype;
  }
  return std::nullopt;
}

Result<FixedHeader> parse_fixed(std::span<const std::byte> bytes) {
  FixedHeader fixed{};
  if (bytes.size() < kFixedBytes) {
    return corrupt(fmt::format("{} bytes, a header has at least {}", bytes.size(), kFixedBytes));
  }
  std::memcpy(&fixed, bytes.data(), kFixedBytes);
  if (fixed.magic != kMagic) return corrupt("does not start as a block file does");
  bool is_older = fixed.version < kOldestBlockFileVersion;
  if (is_older || fixed.version > kNewestBlockFileVersion) {
    return Error{is_older ? ErrorCode::kNotFound : ErrorCode::kUnavailable,
                 fmt::format("format version {}, this program reads {} to {}", fixed.version,
                             kOldestBlockFileVersion, kNewestBlockFileVersion)};
  }
  if (fixed.num_entries == 0 || fixed.num_entries > kMaxEntries) {
    return corrupt(fmt::format("{} entries, 1 to {} are allowed", fixed.num_entries, kMaxEntries));
  }
  return fixed;
}

Result<KvLayout> parse_layout(const FixedHeader& fixed) {
  KvLayout layout;
  if (fixed.num_layers == 0) return layout;
  constexpr uint32_t kLimit = 1 << 16;
  std::optional<DType> dtype = dtype_of(fixed.dtype);
  if (!dtype || fixed.block_tokens != kBlockTokens || fixed.num_layers > kLimit ||
      fixed.num_kv_heads - 1 >= kLimit || fixed.head_dim - 1 >= kLimit) {
    return corrupt("layout fields are out of range");
  }
  layout.num_layers = static_cast<int32_t>(fixed.num_layers);
  layout.num_kv_heads = static_cast<int32_t>(fixed.num_kv_heads);
  layout.head_dim = static_cast<int32_t>(fixed.head_dim);
  layout.dtype = *dtype;
  return layout;
}

uint32_t version_of(std::span<const BlockFileEntry> entries) {
  bool has_coded = std::any_of(entries.begin(), entries.end(), [](const BlockFileEntry& entry) {
    return entry.encoding == EntryEncoding::kCoded;
  });
  return has_coded ? kNewestBlockFileVersion : kOldestBlockFileVersion;
}

bool sizes_fit(const BlockFileEntry& entry, const KvLayout& layout) {
  bool is_kv = entry.id.kind == EntryKind::kKeyValue;
  if (layout.num_layers > 0) {
    if (entry.id.layer >= layout.num_layers) return false;
    if (is_kv && entry.bytes != layout.layer_bytes()) return false;
  }
  switch (entry.encoding) {
    case EntryEncoding::kRaw:
      return entry.bytes == entry.stored_bytes;
    case EntryEncoding::kInt8:
      return is_kv && int8_can_hold(layout, entry.bytes) &&
             entry.stored_bytes == int8_bytes(layout);
    case EntryEncoding::kCoded:  // any size below the raw one: the piece says more
      return is_kv && layout.num_layers > 0 && layout.dtype != DType::kI8 &&
             entry.stored_bytes < entry.bytes;
  }
  return false;
}

Result<BlockFileEntry> parse_entry(const EntryRecord& record, const KvLayout& layout) {
  bool known_kind = record.kind == static_cast<uint8_t>(EntryKind::kKeyValue) ||
                    record.kind == static_cast<uint8_t>(EntryKind::kLayerInput);
  if (!known_kind || record.encoding > static_cast<uint8_t>(EntryEncoding::kCoded) ||
      record.layer < 0) {
    return corrupt(fmt::format("entry of kind {}, layer {}, encoding {} is not known", record.kind,
                               record.layer, record.encoding));
  }
  BlockFileEntry entry;
  entry.id = {static_cast<EntryKind>(record.kind), record.layer};
  entry.encoding = static_cast<EntryEncoding>(record.encoding);
  entry.offset = record.offset;
  entry.stored_bytes = record.stored_bytes;
  entry.bytes = record.bytes;
  entry.checksum = record.checksum;
  if (!sizes_fit(entry, layout)) {
    return corrupt(
        fmt::format("layer {}: {} bytes, stored in {} with encoding {}, do not fit the "
                    "layout of {} layers with {} bytes each",
                    record.layer, entry.bytes, entry.stored_bytes, record.encoding,
                    layout.num_layers, layout.layer_bytes()));
  }
  return entry;
}

// Entries follow each other in order, each at the first aligned place, and end where the file ends.
Result<void> check_placement(const BlockFileHeader& header) {
  uint64_t expected = header_bytes(header.entries.size());
  uint64_t end = expected;
  for (size_t i = 0; i < header.entries.size(); ++i) {
    const BlockFileEntry& entry = header.entries[i];
    if (i > 0 && !(header.entries[i - 1].id < entry.id)) return corrupt("entries are not in order");
    if (entry.offset != expected || entry.offset > header.file_bytes ||
        entry.stored_bytes > header.file_bytes - entry.offset) {
      return corrupt(fmt::format("entry {} lies at {} with {} bytes, outside its place", i,
                                 entry.offset, entry.stored_bytes));
    }
    end = entry.offset + entry.stored_bytes;
    expected = round_up(end, kEntryAlignment);
  }
  if (end != header.file_bytes) {
    return corrupt(fmt::format("entries end at {}, the file at {}", end, header.file_bytes));
  }
  return {};
}

}  // namespace

const BlockFileEntry* BlockFileHeader::find(EntryId id) const {
  auto found =
      std::lower_bound(entries.begin(), entries.end(), id,
                       [](const BlockFileEntry& e, EntryId wanted) { return e.id < wanted; });
  return found != entries.end() && found->id == id ? &*found : nullptr;
}

size_t header_bytes(size_t num_entries) {
  return round_up(kFixedBytes + num_entries * kEntryBytes + kChecksumBytes, kHeaderAlignment);
}

void place_entries(BlockFileHeader& header) {
  uint64_t offset = header_bytes(header.entries.size());
  for (BlockFileEntry& entry : header.entries) {
    entry.offset = round_up(offset, kEntryAlignment);
    offset = entry.offset + entry.stored_bytes;
  }
  header.file_bytes = offset;
}

std::vector<std::byte> write_header(const BlockFileHeader& header) {
  check(!header.entries.empty() && header.entries.size() <= kMaxEntries,
        "a file has 1 to 4096 entries");
  FixedHeader fixed{};
  fixed.magic = kMagic;
  fixed.version = version_of(header.entries);
  fixed.num_entries = static_cast<uint32_t>(header.entries.size());
  fixed.file_bytes = header.file_bytes;
  fixed.key = header.key.bytes;
  fixed.owner = header.owner.bytes;
  fixed.position = header.position;
  if (header.layout.num_layers > 0) {
    fixed.num_layers = static_cast<uint32_t>(header.layout.num_layers);
    fixed.num_kv_heads = static_cast<uint32_t>(header.layout.num_kv_heads);
    fixed.head_dim = static_cast<uint32_t>(header.layout.head_dim);
    fixed.block_tokens = kBlockTokens;
    std::string_view name = name_of(header.layout.dtype);
    std::copy(name.begin(), name.end(), fixed.dtype.begin());
  }
  std::vector<std::byte> bytes(header_bytes(header.entries.size()));
  std::memcpy(bytes.data(), &fixed, kFixedBytes);
  size_t at = kFixedBytes;
  for (const BlockFileEntry& entry : header.entries) {
    EntryRecord record{static_cast<uint8_t>(entry.id.kind),
                       static_cast<uint8_t>(entry.encoding),
                       0,
                       entry.id.layer,
                       entry.offset,
                       entry.stored_bytes,
                       entry.bytes,
                       entry.checksum};
    std::memcpy(bytes.data() + at, &record, kEntryBytes);
    at += kEntryBytes;
  }
  uint64_t checksum = xxhash64(std::span(bytes).first(at));
  std::memcpy(bytes.data() + at, &checksum, kChecksumBytes);
  return bytes;
}

Result<size_t> header_bytes_of(std::span<const std::byte> start) {
  Result<FixedHeader> fixed = parse_fixed(start);
  if (!fixed) return fixed.error();
  return header_bytes(fixed->num_entries);
}

Result<BlockFileHeader> parse_header(std::span<const std::byte> bytes, uint64_t file_bytes) {
  Result<FixedHeader> fixed = parse_fixed(bytes);
  if (!fixed) return fixed.error();
  size_t table_end = kFixedBytes + fixed->num_entries * kEntryBytes;
  if (bytes.size() < header_bytes(fixed->num_entries)) return corrupt("the header is cut off");
  uint64_t checksum = 0;
  std::memcpy(&checksum, bytes.data() + table_end, kChecksumBytes);
  if (checksum != xxhash64(bytes.first(table_end)))
    return corrupt("the header's checksum is wrong");
  if (fixed->file_bytes != file_bytes) {
    return corrupt(fmt::format("{} bytes, the header says {}", file_bytes, fixed->file_bytes));
  }
  BlockFileHeader header;
  header.key.bytes = fixed->key;
  header.owner.bytes = fixed->owner;
  header.position = fixed->position;
  header.file_bytes = file_bytes;
  Result<KvLayout> layout = parse_layout(*fixed);
  if (!layout) return layout.error();
  header.layout = *layout;
  header.entries.reserve(fixed->num_entries);
  for (size_t i = 0; i < fixed->num_entries; ++i) {
    EntryRecord record{};
    std::memcpy(&record, bytes.data() + kFixedBytes + i * kEntryBytes, kEntryBytes);
    Result<BlockFileEntry> entry = parse_entry(record, header.layout);
    if (!entry) return entry.error();
    header.entries.push_back(*entry);
  }
  Result<void> placement = check_placement(header);
  if (!placement) return placement.error();
  return header;
}

std::string block_file_name(const BlockFileHeader& header) {
  std::vector<uint64_t> ids;
  for (const BlockFileEntry& entry : header.entries) {
    ids.push_back(static_cast<uint64_t>(entry.id.kind) << 40 |
                  static_cast<uint64_t>(entry.encoding) << 32 |
                  static_cast<uint64_t>(static_cast<uint32_t>(entry.id.layer)));
  }
  std::string hex = header.key.hex();
  return fmt::format("{}/{}-{:016x}.kv", hex.substr(0, 2), hex.substr(2),
                     xxhash64(std::as_bytes(std::span(ids))));
}

std::optional<Digest> key_of_block_file(const std::string& folder, const std::string& name) {
  constexpr size_t kNameLength = 62 + 1 + 16 + 3;
  if (folder.size() != 2 || name.size() != kNameLength || name[62] != '-' ||
      !name.ends_with(".kv")) {
    return std::nullopt;
  }
  std::string hex = folder + name.substr(0, 62);
  bool is_hex = hex.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!is_hex) return std::nullopt;
  return Digest::from_hex(hex);
}

}  // namespace droidspeak
