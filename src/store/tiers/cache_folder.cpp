#include "store/tiers/cache_folder.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>
#include <tuple>

#include <fmt/format.h>

#include "base/error.h"
#include "store/cache_store.h"
#include "store/tiers/block_writer.h"
#include "store/tiers/open_files.h"
#include "store/tiers/private_folder.h"
#include "store/tiers/table_folder.h"

namespace droidspeak {
namespace {

namespace fs = std::filesystem;

// Calls `visit` for each thing in a folder; one that vanishes or cannot be read counts as empty.
template <class Visit>
void for_each_in(const fs::path& folder, Visit visit) {
  std::error_code error;
  for (fs::directory_iterator item(folder, error), end; !error && item != end;
       item.increment(error)) {
    visit(*item);
  }
}

FoundBlockFile inspect_file(FileSystem& files, const fs::directory_entry& item, const Digest& key) {
  std::error_code error;
  fs::file_time_type written = item.last_write_time(error);
  Result<OpenBlockFile> opened = open_block_file(files, item.path(), key);
  if (!opened) return {item.path().string(), key, written, opened.error()};
  return {item.path().string(), key, written, std::move(opened->header)};
}

Result<void> verify_coded(TableFolder& folder,
                          const BlockFileHeader& header,
                          const BlockFileEntry& entry,
                          std::span<const std::byte> piece) {
  auto corrupt = [&](std::string_view reason) {
    return Error{ErrorCode::kDataCorrupt,
                 fmt::format("K/V of layer {}: {}", entry.id.layer, reason)};
  };
  std::optional<TablesName> name = tables_of_piece(piece);
  if (!name) return corrupt("does not start as a coded piece of this version does");
  std::shared_ptr<const CodecTables> tables = folder.find(*name);
  if (!tables || !tables->fit(header.layout))
    return corrupt("its codec tables are missing, damaged or of another layout");
  auto values = std::make_unique_for_overwrite<std::byte[]>(entry.bytes);
  PieceLabel label{entry.id.layer, header.position * kBlockTokens};
  return PieceDecoder().decode(*tables, header.layout, label, piece, {values.get(), entry.bytes});
}

// Reads every entry; the first thing that is wrong.
Result<void> verify_entries(FileSystem& files, TableFolder& tables, const OpenBlockFile& block) {
  for (const BlockFileEntry& entry : block.header.entries) {
    auto bytes = std::make_unique_for_overwrite<std::byte[]>(entry.stored_bytes);
    std::span<std::byte> stored(bytes.get(), entry.stored_bytes);
    Result<size_t> got = files.read(block.file, entry.offset, stored);
    if (!got) return got.error();
    if (*got != stored.size() || xxhash64(stored) != entry.checksum) {
      return Error{
          ErrorCode::kDataCorrupt,
          fmt::format("{} of layer {}: checksum is wrong",
                      entry.id.kind == EntryKind::kKeyValue ? "K/V" : "input", entry.id.layer)};
    }
    if (entry.encoding != EntryEncoding::kCoded) continue;
    Result<void> coded = verify_coded(tables, block.header, entry, stored);
    if (!coded) return coded;
  }
  return {};
}

}  // namespace

void prepare_cache_folder(const fs::path& folder) {
  fs::path name = folder.has_filename() ? folder : folder.parent_path();  // "cache/" too
  std::error_code error;
  fs::create_directories(name.parent_path(), error);
  Result<void> made = make_private_folder(name);
  if (!fs::is_directory(name, error)) {
    throw Failure(
        ErrorCode::kUnavailable,
        fmt::format("cache folder {}: not a folder and cannot be made one: {}", folder.string(),
                    made ? "a file is in the way" : made.error().message));
  }
  narrow_cache_folder(name);
  (void)make_private_folder(temporary_folder(name));
}

void remove_abandoned_temporaries(const fs::path& folder) {
  for_each_in(temporary_folder(folder), [](const fs::directory_entry& item) {
    if (item.path().extension() == ".part") remove_if_abandoned(item.path());
  });
}

std::vector<FoundBlockFile> find_block_files(FileSystem& files, const fs::path& folder) {
  std::vector<FoundBlockFile> found;
  for_each_in(folder, [&](const fs::directory_entry& fan) {
    std::string fan_name = fan.path().filename().string();
    if (fan_name.size() != 2) return;
    for_each_in(fan.path(), [&](const fs::directory_entry& item) {
      auto key = key_of_block_file(fan_name, item.path().filename().string());
      if (key) found.push_back(inspect_file(files, item, *key));
    });
  });
  auto order = [](FoundBlockFile& file) {
    auto second = std::chrono::floor<std::chrono::seconds>(file.written.time_since_epoch());
    uint32_t position = file.header ? file.header->position : 0;
    return std::tuple(second, UINT32_MAX - position);
  };
  std::sort(found.begin(), found.end(),
            [&](FoundBlockFile& a, FoundBlockFile& b) { return order(a) < order(b); });
  return found;
}

CacheFolderReport inspect_cache_folder(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    throw Failure(ErrorCode::kNotFound, fmt::format("{}: not a cache folder", folder.string()));
  }
  FileSystem files;
  TableFolder tables(files, folder, {}, {});
  CacheFolderReport report;
  for (FoundBlockFile& found : find_block_files(files, folder)) {
    ++report.files;
    Result<OpenBlockFile> opened = open_block_file(files, found.path, found.key);
    Result<void> verified =
        opened ? verify_entries(files, tables, *opened) : Result<void>(opened.error());
    if (!verified) {
      report.damaged.push_back(found.path + ": " + verified.error().message);
      continue;
    }
    report.entries += opened->header.entries.size();
    report.bytes += opened->header.file_bytes;
  }
  return report;
}

}  // namespace droidspeak
