// The maps of a plan book: checked when the book is loaded, read and packed when a plan first needs
// them. Books that nobody follows cost a header's memory only. Thread-safe.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "base/hash.h"
#include "base/mutex.h"
#include "base/result.h"
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

  // Checks names, shapes and sizes and notes the file's digest. Throws Failure naming the file and
  // what is wrong. `ops` outlives this.
  LazyTranslator(Ops& ops, std::filesystem::path path, const Shape& shape);

  // Of the file as it was found.
  const Digest& digest() const { return digest_; }

  // False once get() has failed.
  bool is_usable() const;
  // Reads on first use. An error (the file is gone, was changed, or holds a value that is not
  // finite) stays: these maps are never used.
  Result<std::shared_ptr<const Translator>> get() const;

 private:
  Result<std::shared_ptr<const Translator>> read() const;

  Ops& ops_;
  const std::filesystem::path path_;
  const Shape shape_;
  const Digest digest_;

  mutable Mutex mutex_;
  mutable std::shared_ptr<const Translator> translator_ GUARDED_BY(mutex_);
  mutable std::optional<Error> error_ GUARDED_BY(mutex_);
};

}  // namespace droidspeak
