#include "store/tiers/block_writer.h"

#include <algorithm>
#include <map>
#include <random>

#include <fmt/format.h>

#include "base/check.h"
#include "codec/kv_codec.h"
#include "store/tiers/int8_codec.h"
#include "store/tiers/private_folder.h"

namespace droidspeak {
namespace {

constexpr size_t kMaxTemporaries = 32;          // open at a time: written together, synced together
constexpr size_t kStepBytes = size_t{4} << 20;  // that a slow disk takes before it counts as stuck

std::string random_name() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

std::span<const std::byte> keep(std::vector<std::byte> encoded, BlockImage& image) {
  image.encoded.push_back(std::move(encoded));
  return image.encoded.back();
}

std::span<const std::byte> store_coded(const PendingEntry& entry,
                                       const BlockEncoding& encoding,
                                       BlockImage& image,
                                       BlockFileEntry& placed) {
  PieceLabel label{entry.id.layer, image.header.position * kBlockTokens};
  auto piece = encode_piece(*encoding.tables, encoding.layout, label, entry.bytes);
  if (!piece || piece->size() >= entry.bytes.size()) return entry.bytes;
  placed.encoding = EntryEncoding::kCoded;
  return keep(std::move(*piece), image);
}

// The stored form of one entry, encoded where the format asks for it and the values allow it.
std::span<const std::byte> store_entry(const PendingEntry& entry,
                                       const BlockEncoding& encoding,
                                       BlockImage& image,
                                       BlockFileEntry& placed) {
  bool is_kv = entry.id.kind == EntryKind::kKeyValue;
  if (is_kv && encoding.encoding == EntryEncoding::kCoded && encoding.tables)
    return store_coded(entry, encoding, image, placed);
  bool try_int8 = is_kv && encoding.encoding == EntryEncoding::kInt8 &&
                  int8_can_hold(encoding.layout, entry.bytes.size());
  if (!try_int8) return entry.bytes;
  std::vector<std::byte> encoded(int8_bytes(encoding.layout));
  if (!encode_int8(encoding.layout, entry.bytes, encoded)) return entry.bytes;
  placed.encoding = EntryEncoding::kInt8;
  return keep(std::move(encoded), image);
}

}  // namespace

EntryEncoding encoding_of(DiskFormat format) {
  switch (format) {
    case DiskFormat::kRaw:
      return EntryEncoding::kRaw;
    case DiskFormat::kInt8:
      return EntryEncoding::kInt8;
    case DiskFormat::kCoded:
      return EntryEncoding::kCoded;
  }
  panic("a format that is none");
}

std::optional<size_t> BlockEncoding::size_of(EntryId id) const {
  const bool is_input = id.kind == EntryKind::kLayerInput;
  if (is_input ? input_bytes == 0 : layout.num_layers == 0) return std::nullopt;
  return is_input ? input_bytes : layout.layer_bytes();
}

bool BlockEncoding::has_size(EntryId id, size_t bytes) const {
  if (id.layer < 0 || (layout.num_layers > 0 && id.layer >= layout.num_layers)) return false;
  if (id.kind != EntryKind::kKeyValue && id.kind != EntryKind::kLayerInput) return false;
  return size_of(id).value_or(bytes) == bytes;
}

BlockImage make_block_image(const PendingWrite& write, const BlockEncoding& encoding) {
  std::vector<const PendingEntry*> entries;
  for (const PendingEntry& entry : write.entries) entries.push_back(&entry);
  std::sort(entries.begin(), entries.end(),
            [](const PendingEntry* a, const PendingEntry* b) { return a->id < b->id; });
  BlockImage image;
  image.header.key = write.label.key;
  image.header.owner = write.label.owner;
  image.header.position = write.label.position;
  image.header.layout = encoding.layout;
  for (const PendingEntry* entry : entries) {
    BlockFileEntry placed;
    placed.id = entry->id;
    std::span<const std::byte> stored = store_entry(*entry, encoding, image, placed);
    placed.bytes = entry->bytes.size();
    placed.stored_bytes = stored.size();
    placed.checksum = xxhash64(stored);
    image.header.entries.push_back(placed);
    image.stored.push_back(stored);
  }
  place_entries(image.header);
  image.name = block_file_name(image.header);
  return image;
}

// How far the writing of one image has come.
struct BlockWriter::Step {
  std::filesystem::path temporary;
  std::optional<FileHandle> file;  // open, and so locked, until renamed
  std::filesystem::path path;
  Result<void> result;
};

BlockWriter::BlockWriter(FileSystem& files,
                         std::filesystem::path folder,
                         std::function<void()> on_progress)
    : files_(files),
      folder_(std::move(folder)),
      on_progress_(std::move(on_progress)),
      writer_name_(random_name()) {}

std::vector<Result<void>> BlockWriter::write(std::span<const BlockImage> images) {
  std::vector<Step> steps(images.size());
  for (size_t first = 0; first < images.size(); first += kMaxTemporaries) {
    size_t count = std::min(kMaxTemporaries, images.size() - first);
    write_files(images.subspan(first, count), std::span(steps).subspan(first, count));
  }
  sync_folders(steps);
  std::vector<Result<void>> results;
  for (Step& step : steps) results.push_back(std::move(step.result));
  return results;
}

void BlockWriter::write_files(std::span<const BlockImage> images, std::span<Step> steps) {
  for (size_t i = 0; i < images.size(); ++i) {
    steps[i].result = write_temporary(images[i], steps[i]);
  }
  for (size_t i = 0; i < images.size(); ++i) {
    if (steps[i].result) steps[i].result = finish(images[i], steps[i]);
    if (!steps[i].result && steps[i].file) (void)files_.remove(steps[i].temporary);
    steps[i].file.reset();
  }
}

Result<void> BlockWriter::write_temporary(const BlockImage& image, Step& step) {
  step.temporary =
      temporary_folder(folder_) / fmt::format("{}-{}.part", writer_name_, num_temporaries_++);
  Result<FileHandle> created = files_.create(step.temporary);
  if (!created) return created.error();
  step.file = std::move(*created);

  static constexpr std::byte kPadding[kEntryAlignment] = {};
  std::vector<std::byte> header = write_header(image.header);
  std::vector<std::span<const std::byte>> pieces = {header};
  uint64_t at = header.size();
  for (size_t i = 0; i < image.stored.size(); ++i) {
    const BlockFileEntry& entry = image.header.entries[i];
    pieces.push_back(std::span(kPadding).first(entry.offset - at));
    pieces.push_back(image.stored[i]);
    at = entry.offset + entry.stored_bytes;
  }
  return write_pieces(*step.file, pieces);
}

Result<void> BlockWriter::write_pieces(const FileHandle& file,
                                       std::span<const std::span<const std::byte>> pieces) {
  std::vector<std::span<const std::byte>> next;
  size_t next_bytes = 0;
  for (std::span<const std::byte> piece : pieces) {
    while (!piece.empty()) {
      size_t bytes = std::min(piece.size(), kStepBytes - next_bytes);
      next.push_back(piece.first(bytes));
      piece = piece.subspan(bytes);
      next_bytes += bytes;
      if (next_bytes < kStepBytes) continue;
      Result<void> written = files_.write(file, next);
      if (written) written = files_.write_back(file);
      if (!written) return written;
      on_progress_();
      next.clear();
      next_bytes = 0;
    }
  }
  Result<void> written = files_.write(file, next);
  if (written) on_progress_();
  return written;
}

Result<void> BlockWriter::finish(const BlockImage& image, Step& step) {
  Result<void> synced = files_.sync(*step.file);
  if (!synced) return synced;
  on_progress_();
  step.path = folder_ / image.name;
  (void)make_private_folder(step.path.parent_path());  // if not, the rename says why
  return files_.rename(step.temporary, step.path);
}

void BlockWriter::sync_folders(std::vector<Step>& steps) {
  std::map<std::filesystem::path, std::vector<Step*>> by_folder;
  for (Step& step : steps) {
    if (step.result) by_folder[step.path.parent_path()].push_back(&step);
  }
  if (by_folder.empty()) return;
  Result<void> root = files_.sync_folder(folder_);  // a new sub folder must last, too
  for (auto& [folder, renamed] : by_folder) {
    Result<void> synced = root ? files_.sync_folder(folder) : root;
    on_progress_();
    if (synced) continue;
    for (Step* step : renamed) {
      step->result = synced;
      (void)files_.remove(step->path);
    }
  }
}

std::filesystem::path temporary_folder(const std::filesystem::path& cache_folder) {
  return cache_folder / "tmp";
}

}  // namespace droidspeak
