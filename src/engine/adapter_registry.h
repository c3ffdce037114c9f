// Adapters at run time. Whoever holds a Variant keeps it; a replaced or removed one stores nothing
// any more, and what it stored, in earlier processes too, is erased. (Keys hold its digest, so
// nobody could find it anyway.)
// Used by the engine thread.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"
#include "model/family.h"
#include "store/cache_store.h"

namespace droidspeak {

class AdapterRegistry {
 public:
  // Both outlive the registry.
  AdapterRegistry(ModelFamily& family, CacheStore& store) : family_(family), store_(store) {}

  // Adds or replaces. kInvalidArgument when the name belongs to a full checkpoint; what is wrong
  // with the folder otherwise.
  Result<void> load(const std::string& name, const std::filesystem::path& folder);
  Result<void> unload(const std::string& name);  // kNotFound

  // Whether the variant still goes by its name.
  bool is_current(const Variant& variant) const {
    return family_.find(variant.name).get() == &variant;
  }

 private:
  ModelFamily& family_;
  CacheStore& store_;
};

}  // namespace droidspeak
