// Adapters at run time. Whoever holds a Variant keeps it; a replaced or removed one stores nothing
// any more, and what it stored, in earlier processes too, is erased. (Keys hold its digest, so
// nobody could find it anyway.) What is held so is counted apart from what is loaded: below
// --max-adapters it takes nobody's place, at it loads are refused, so that replacing a name again
// and again under requests that wait does not fill the memory. Used by the engine thread, but for
// what says otherwise.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "kv/block_pool.h"
#include "model/family.h"
#include "store/cache_store.h"

namespace droidspeak {

// When an adapter of that name is there already.
enum class IfTaken { kReplace, kRefuse };

class AdapterRegistry {
 public:
  // All outlive the registry.
  AdapterRegistry(ModelFamily& family, CacheStore& store, BlockPool& pool, int32_t max_adapters)
      : family_(family), store_(store), pool_(pool), max_adapters_(max_adapters) {}

  // Any thread.
  const std::filesystem::path& base_path() const { return family_.file().base.path; }

  // Any thread. kInvalidArgument when the name belongs to a full checkpoint or to an adapter that
  // is not to be replaced, or when there are as many adapters as there may be; kExhausted when
  // requests in flight use as many that have lost their names.
  Result<void> may_add(const std::string& name, IfTaken if_taken) const;
  // Adds or replaces; the errors are those of may_add().
  Result<void> add(const std::string& name,
                   const std::filesystem::path& folder,
                   std::shared_ptr<const Adapter> adapter,
                   IfTaken if_taken);
  Result<void> unload(const std::string& name);  // kNotFound

  // Whether the variant still goes by its name.
  bool is_current(const Variant& variant) const {
    return family_.find(variant.name).get() == &variant;
  }

 private:
  // Of those that no name stands for any more, how many are in memory.
  int64_t num_former() const;
  // `variant` has lost its name.
  void retire(const Variant& variant);
  void erase_caches(const Variant& variant);

  ModelFamily& family_;
  CacheStore& store_;
  BlockPool& pool_;
  const int32_t max_adapters_;
  mutable Mutex mutex_;
  mutable std::vector<std::weak_ptr<const Adapter>> former_ GUARDED_BY(mutex_);
};

}  // namespace droidspeak
