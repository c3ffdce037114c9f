#include "sharing/lazy_translator.h"

#include <exception>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"

namespace droidspeak {
namespace {

// How long a thread that hangs holds up the end of the program.
constexpr std::chrono::milliseconds kLeaveAfter{2000};

Digest checked_digest(const std::filesystem::path& path, const LazyTranslator::Shape& shape) {
  check_translation(path, shape.num_layers, shape.kv_columns, shape.d_model);
  return digest_of_maps(path);
}

TranslationMaps load_maps(const std::filesystem::path& path, const LazyTranslator::Shape& shape) {
  return load_translation(path, shape.num_layers, shape.kv_columns, shape.d_model);
}

// Keys of caches carry the digest that was found at start: other maps must not be used under it.
Result<TranslationMaps> read_unchanged(const std::filesystem::path& path,
                                       const Digest& digest,
                                       const std::function<TranslationMaps()>& load) {
  try {
    auto file = std::make_shared<InputFile>(path);
    const bool is_same = digest_of_maps(file) == digest;
    TranslationMaps maps = load();
    if (is_same && InputFile(path).stamp() == file->stamp()) return maps;
    return Error{ErrorCode::kDataCorrupt,
                 fmt::format("{}: was changed since its plan book was loaded; restart to use it",
                             path.string())};
  } catch (const Failure& failure) {
    return failure.error();
  } catch (const std::exception& error) {
    return Error{ErrorCode::kUnavailable, fmt::format("{}: {}", path.string(), error.what())};
  }
}

}  // namespace

// What the thread and those who wait for it share.
struct LazyTranslator::Reading {
  Mutex mutex;
  Condition changed;
  std::optional<Result<TranslationMaps>> maps GUARDED_BY(mutex);

  void put(Result<TranslationMaps> read) {
    MutexLock lock(mutex);
    maps.emplace(std::move(read));
    changed.notify_all();
  }

  bool is_done() {
    MutexLock lock(mutex);
    return maps.has_value();
  }

  // Nothing when the time has run out.
  std::optional<Result<TranslationMaps>> take(std::chrono::milliseconds patience) {
    auto begin = std::chrono::steady_clock::now();
    MutexLock lock(mutex);
    while (!maps) {
      auto waited = std::chrono::steady_clock::now() - begin;
      if (patience == kForEver) {
        changed.wait(mutex);
      } else if (waited < patience) {
        changed.wait_for(mutex, patience - waited);
      } else {
        return std::nullopt;
      }
    }
    return std::move(maps);
  }
};

LazyTranslator::LazyTranslator(Ops& ops, std::filesystem::path path, const Shape& shape)
    : LazyTranslator(ops, std::move(path), shape, load_maps) {}

LazyTranslator::LazyTranslator(Ops& ops, std::filesystem::path path, const Shape& shape, Load load)
    : ops_(ops),
      path_(std::move(path)),
      shape_(shape),
      digest_(checked_digest(path_, shape)),
      load_(std::move(load)) {}

LazyTranslator::~LazyTranslator() = default;

bool LazyTranslator::is_usable() const {
  MutexLock lock(mutex_);
  return !error_ && (!reading_ || reading_->is_done());
}

Result<std::shared_ptr<const Translator>> LazyTranslator::get(
    std::chrono::milliseconds patience) const {
  MutexLock lock(mutex_);
  if (error_) return *error_;
  if (translator_) return translator_;
  if (!reading_) start_reading();
  std::optional<Result<TranslationMaps>> maps = reading_->take(patience);
  if (!maps) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("{}: it takes more than {} ms to read it; it is used once it is read",
                             path_.string(), patience.count())};
  }
  thread_.reset();
  reading_.reset();
  Result<std::shared_ptr<const Translator>> result = pack(std::move(*maps));
  if (result) {
    translator_ = *result;
  } else {
    error_ = result.error();
  }
  return result;
}

void LazyTranslator::start_reading() const {
  reading_ = std::make_shared<Reading>();
  auto read = [reading = reading_, path = path_, digest = digest_, shape = shape_, load = load_] {
    reading->put(read_unchanged(path, digest, [&] { return load(path, shape); }));
  };
  try {
    thread_ = std::make_unique<TransferThreads>(kLeaveAfter);
  } catch (const Failure&) {
    return read();  // the system has no thread
  }
  thread_->start(read);
}

// By the caller, who alone uses the device.
Result<std::shared_ptr<const Translator>> LazyTranslator::pack(Result<TranslationMaps> maps) const {
  if (!maps) return maps.error();
  try {
    return std::shared_ptr<const Translator>(std::make_shared<Translator>(ops_, *maps));
  } catch (const Failure& failure) {
    return failure.error();
  }
}

}  // namespace droidspeak
