#include "sharing/lazy_translator.h"

#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "formats/file_tensor.h"

namespace droidspeak {
namespace {

Digest digest_of(const std::filesystem::path& path) {
  auto file = std::make_shared<InputFile>(path);
  Sha256 hash;
  TensorBytes(file, 0, file->size()).for_each_piece([&](auto piece) { hash.add(piece); });
  return hash.finish();
}

Digest checked_digest(const std::filesystem::path& path, const LazyTranslator::Shape& shape) {
  check_translation(path, shape.num_layers, shape.kv_columns, shape.d_model);
  return digest_of(path);
}

}  // namespace

LazyTranslator::LazyTranslator(Ops& ops, std::filesystem::path path, const Shape& shape)
    : ops_(ops), path_(std::move(path)), shape_(shape), digest_(checked_digest(path_, shape)) {}

bool LazyTranslator::is_usable() const {
  MutexLock lock(mutex_);
  return !error_;
}

Result<std::shared_ptr<const Translator>> LazyTranslator::get() const {
  MutexLock lock(mutex_);
  if (error_) return *error_;
  if (translator_) return translator_;
  Result<std::shared_ptr<const Translator>> result = read();
  if (result) {
    translator_ = *result;
  } else {
    error_ = result.error();
  }
  return result;
}

// Keys of caches carry the digest that was found at start: other maps must not be used under it.
Result<std::shared_ptr<const Translator>> LazyTranslator::read() const {
  try {
    TranslationMaps maps =
        load_translation(path_, shape_.num_layers, shape_.kv_columns, shape_.d_model);
    if (digest_of(path_) != digest_) {
      return Error{ErrorCode::kDataCorrupt,
                   fmt::format("{}: was changed since its plan book was loaded; restart to use it",
                               path_.string())};
    }
    return std::shared_ptr<const Translator>(std::make_shared<Translator>(ops_, maps));
  } catch (const Failure& failure) {
    return failure.error();
  }
}

}  // namespace droidspeak
