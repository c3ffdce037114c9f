// The maps of a plan book: checked when the book is loaded, read and packed when a plan first needs
// them. Books that nobody follows cost a header's memory only. Thread-safe.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "base/hash.h"
#include "base/mutex.h"
#include "base/result.h"
#include "sharing/transfer_threads.h"
#include "sharing/translation.h"

namespace droidspeak {

class LazyTranslator {
 public:
  // What the maps have to fit.
  struct Shape {
    int32_t num_layers = 0;
    int32_t kv_columns = 0;
    int32_t d_model = 0;
  };

  // The values of a file.
  using Load = std::function<TranslationMaps(const std::filesystem::path&, const Shape&)>;

  static constexpr auto kForEver = TransferThreads::kForEver;

  // Checks names, shapes and sizes and notes the file's digest. Throws Failure naming the file and
  // what is wrong. `ops` outlives this.
  LazyTranslator(Ops& ops, std::filesystem::path path, const Shape& shape);
  LazyTranslator(Ops& ops, std::filesystem::path path, const Shape& shape, Load load);
  ~LazyTranslator();

  // Of the file as it was found.
  const Digest& digest() const { return digest_; }

  // False once get() has failed, and while what it did not wait for is being read.
  bool is_usable() const;
  // Reads on first use, in a thread of its own, so that a disk that hangs costs the caller
  // `patience` once: kUnavailable then. Another error (the file is gone, was changed, or holds a
  // value that is not finite) stays: these maps are never used.
  Result<std::shared_ptr<const Translator>> get(
      std::chrono::milliseconds patience = kForEver) const;

 private:
  struct Reading;

  void start_reading() const REQUIRES(mutex_);
  Result<std::shared_ptr<const Translator>> pack(Result<TranslationMaps> maps) const;

  Ops& ops_;
  const std::filesystem::path path_;
  const Shape shape_;
  const Digest digest_;
  const Load load_;

  mutable Mutex mutex_;
  mutable std::shared_ptr<Reading> reading_ GUARDED_BY(mutex_);         // both null:
  mutable std::unique_ptr<TransferThreads> thread_ GUARDED_BY(mutex_);  // not begun, or done
  mutable std::shared_ptr<const Translator> translator_ GUARDED_BY(mutex_);
  mutable std::optional<Error> error_ GUARDED_BY(mutex_);
};

}  // namespace droidspeak
