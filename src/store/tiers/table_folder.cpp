#include "store/tiers/table_folder.h"

#include <algorithm>
#include <system_error>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "store/tiers/block_writer.h"
#include "store/tiers/private_folder.h"

namespace droidspeak {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxTableBytes = uint64_t{64} << 20;
constexpr size_t kRecentBlocks = 8;  // by which tables are judged
constexpr size_t kModelDigits = 16;
constexpr uint64_t kLogEvery = 256;  // failures to learn

// "<16 digits of the model>-<digest>.tables"
std::string file_name(const Digest& model, const Digest& tables) {
  return fmt::format("{}-{}.tables", model.hex().substr(0, kModelDigits), tables.hex());
}

std::string hex_of(const TablesName& name) {
  std::string hex;
  for (uint8_t byte : name) hex += fmt::format("{:02x}", byte);
  return hex;
}

fs::file_time_type time_of(const fs::path& path) {
  std::error_code error;
  fs::file_time_type time = fs::last_write_time(path, error);
  return error ? fs::file_time_type::min() : time;
}

// The newest first.
std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<std::pair<fs::file_time_type, fs::path>> found;
  std::error_code error;
  for (fs::directory_iterator item(folder, error), end; !error && item != end;
       item.increment(error)) {
    if (item->path().extension() == ".tables")
      found.emplace_back(time_of(item->path()), item->path());
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<fs::path> paths;
  for (auto& [time, path] : found) paths.push_back(std::move(path));
  return paths;
}

}  // namespace

fs::path tables_folder(const fs::path& cache_folder) {
  return cache_folder / "tables";
}

TableFolder::TableFolder(FileSystem& files,
                         const fs::path& cache_folder,
                         CodedModel model,
                         const KvLayout& layout)
    : files_(files),
      cache_folder_(cache_folder),
      model_(std::move(model)),
      owner_(digest_of(model_)),
      layout_(layout),
      learner_(model_, layout) {}

std::shared_ptr<const CodecTables> TableFolder::for_writing(
    std::span<const std::shared_ptr<PendingWrite>> batch) {
  if (!learner_.can_learn()) return nullptr;
  if (!for_writing_ && !has_looked_) for_writing_ = load_for_writing();
  has_looked_ = true;
  if (for_writing_) return for_writing_;
  learner_.remember(batch);
  if (learner_.has_seen_enough()) for_writing_ = load_or_learn();
  return for_writing_;
}

void TableFolder::note_stored(size_t num_coded, size_t num_raw) {
  num_coded_ += num_coded;
  num_raw_ += num_raw;
  if (num_coded_ + num_raw_ < kRecentBlocks * static_cast<size_t>(layout_.num_layers)) return;
  if (for_writing_ && num_raw_ > num_coded_) {
    spdlog::info("cache folder {}: {} of {} layers do not fit the codec tables, others are learned",
                 cache_folder_.string(), num_raw_, num_raw_ + num_coded_);
    outgrown_.insert(name_of_tables(for_writing_->digest()));
    for_writing_ = nullptr;
  }
  num_coded_ = 0;
  num_raw_ = 0;
}

std::shared_ptr<const CodecTables> TableFolder::find(const TablesName& name) {
  {
    MutexLock lock(mutex_);
    auto known = known_.find(name);
    if (known != known_.end()) return known->second;
  }
  std::string wanted = hex_of(name);
  for (const fs::path& path : files_in(tables_folder(cache_folder_))) {
    std::string stem = path.stem().string();
    if (stem.size() <= kModelDigits || !stem.substr(kModelDigits + 1).starts_with(wanted)) continue;
    auto tables = load(path);
    if (tables && name_of_tables(tables->digest()) == name) return tables;
  }
  return nullptr;
}

std::shared_ptr<const CodecTables> TableFolder::load_for_writing() {
  std::string model = owner_.hex().substr(0, kModelDigits);
  for (const fs::path& path : files_in(tables_folder(cache_folder_))) {
    if (!path.stem().string().starts_with(model)) continue;
    auto tables = load(path);
    bool is_ours = tables && file_name(owner_, tables->digest()) == path.filename().string() &&
                   tables->contents().rotation == model_.rotation &&
                   !outgrown_.contains(name_of_tables(tables->digest()));
    if (is_ours) return tables;
  }
  return nullptr;
}

std::shared_ptr<const CodecTables> TableFolder::load(const fs::path& path) {
  fs::file_time_type changed = time_of(path);
  {
    MutexLock lock(mutex_);
    auto damaged = damaged_.find(path);
    if (damaged != damaged_.end() && damaged->second == changed) return nullptr;
  }
  Result<FileHandle> file = files_.open(path);
  if (!file || size_of(*file) > kMaxTableBytes) return nullptr;
  std::vector<std::byte> bytes(size_of(*file));
  Result<size_t> got = files_.read(*file, 0, bytes);
  if (!got || *got != bytes.size()) return nullptr;
  Result<CodecTables> parsed = CodecTables::parse(bytes);
  bool is_known_layout = layout_.num_layers > 0;
  bool is_named = parsed && path.stem().string().ends_with("-" + parsed->digest().hex());
  if (!is_named || (is_known_layout && !parsed->fit(layout_))) {
    std::string reason = "for another layout";
    if (!is_named) reason = parsed ? "not what its name says" : parsed.error().message;
    spdlog::warn("{}: {}; it is not used", path.string(), reason);
    MutexLock lock(mutex_);
    damaged_[path] = changed;
    return nullptr;
  }
  auto tables = std::make_shared<const CodecTables>(std::move(*parsed));
  MutexLock lock(mutex_);
  known_[name_of_tables(tables->digest())] = tables;
  return tables;
}

// One process at a time: the temporary, which is locked while its writer lives, stands for the
// turn.
std::shared_ptr<const CodecTables> TableFolder::load_or_learn() {
  remove_if_abandoned(temporary());
  Result<FileHandle> turn = files_.create(temporary());
  auto tables = load_for_writing();  // another process may have been faster
  std::error_code error;
  if (!turn && !tables && !fs::exists(temporary(), error)) warn_of_saving(turn.error());
  if (tables) learner_.forget();
  bool is_learned = !tables && turn && (tables = learn(*turn));
  if (turn && !is_learned) (void)files_.remove(temporary());
  return tables;
}

std::shared_ptr<const CodecTables> TableFolder::learn(const FileHandle& file) {
  Result<CodecTables> learned = learner_.learn();
  if (!learned) {
    if (num_unlearned_++ % kLogEvery == 0) {
      spdlog::warn("cache folder {}: no codec tables from these blocks, K/V is stored raw: {}",
                   cache_folder_.string(), learned.error().message);
    }
    return nullptr;
  }
  auto tables = std::make_shared<const CodecTables>(std::move(*learned));
  Result<void> saved = save(*tables, file);
  if (!saved) {
    warn_of_saving(saved.error());
    return nullptr;
  }
  MutexLock lock(mutex_);
  known_[name_of_tables(tables->digest())] = tables;
  return tables;
}

void TableFolder::warn_of_saving(const Error& error) const {
  spdlog::warn("cache folder {}: codec tables cannot be written, K/V is stored raw: {}",
               cache_folder_.string(), error.message);
}

Result<void> TableFolder::save(const CodecTables& tables, const FileHandle& file) {
  fs::path folder = tables_folder(cache_folder_);
  Result<void> done = make_private_folder(folder);
  std::vector<std::byte> bytes = tables.serialise();
  std::span<const std::byte> piece = bytes;
  if (done) done = files_.write(file, std::span(&piece, 1));
  if (done) done = files_.sync(file);
  if (done) done = files_.rename(temporary(), folder / file_name(owner_, tables.digest()));
  if (done) done = files_.sync_folder(folder);
  if (done) done = files_.sync_folder(cache_folder_);
  return done;
}

fs::path TableFolder::temporary() const {
  return temporary_folder(cache_folder_) /
         fmt::format("tables-{}.part", owner_.hex().substr(0, kModelDigits));
}

}  // namespace droidspeak
