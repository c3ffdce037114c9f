#include "engine/adapter_registry.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "sharing/context_writer.h"

namespace droidspeak {

Result<void> AdapterRegistry::may_add(const std::string& name, IfTaken if_taken) const {
  auto refused = [&](const std::string& why) {
    return Error{ErrorCode::kInvalidArgument, fmt::format("adapter \"{}\": {}", name, why)};
  };
  auto before = family_.find(name);
  if (before && !before->adapter)
    return refused("the name belongs to a full checkpoint of the family");
  if (before && if_taken == IfTaken::kRefuse)
    return refused("it has already been loaded; set load_inplace to replace it");
  auto num_adapters = std::ranges::count_if(
      family_.variants(), [](const auto& other) { return other->adapter != nullptr; });
  if (!before && num_adapters >= max_adapters_) {
    return refused(fmt::format("{} adapters are loaded and --max-adapters is {}; unload one first",
                               num_adapters, max_adapters_));
  }
  const int64_t former = num_former();
  if (former == 0 || former < max_adapters_) return {};
  return Error{
      ErrorCode::kExhausted,
      fmt::format("adapter \"{}\": requests in flight use {} adapters that were replaced or "
                  "unloaded, and --max-adapters is {}: try again when these requests are "
                  "done",
                  name, former, max_adapters_)};
}

int64_t AdapterRegistry::num_former() const {
  MutexLock lock(mutex_);
  std::erase_if(former_, [](const auto& adapter) { return adapter.expired(); });
  return std::ssize(former_);
}

void AdapterRegistry::retire(const Variant& variant) {
  MutexLock lock(mutex_);
  former_.push_back(variant.adapter);
}

Result<void> AdapterRegistry::add(const std::string& name,
                                  const std::filesystem::path& folder,
                                  std::shared_ptr<const Adapter> adapter,
                                  IfTaken if_taken) {
  if (Result<void> allowed = may_add(name, if_taken); !allowed) return allowed;
  auto before = family_.find(name);
  family_.add_adapter(name, folder, std::move(adapter));
  if (before) retire(*before);
  if (before && before->adapter_digest != family_.get(name)->adapter_digest) erase_caches(*before);
  spdlog::info("adapter \"{}\" {} from {}", name, before ? "replaced" : "loaded", folder.string());
  return {};
}

Result<void> AdapterRegistry::unload(const std::string& name) {
  auto before = family_.find(name);
  if (!before || !before->adapter || !family_.remove_adapter(name)) {
    return Error{ErrorCode::kNotFound, fmt::format("adapter \"{}\" is not loaded", name)};
  }
  retire(*before);
  erase_caches(*before);
  spdlog::info("adapter \"{}\" unloaded", name);
  return {};
}

// What the others have on the device is in the store as well.
void AdapterRegistry::erase_caches(const Variant& variant) {
  store_.erase_owned_by(cache_owner(variant));
  pool_.forget_all();
}

}  // namespace droidspeak
