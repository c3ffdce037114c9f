#include "engine/adapter_registry.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "sharing/context_writer.h"

namespace droidspeak {

Result<void> AdapterRegistry::load(const std::string& name, const std::filesystem::path& folder) {
  auto before = family_.find(name);
  if (before && !before->adapter) {
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("adapter \"{}\": the name belongs to a full checkpoint of the family", name)};
  }
  try {
    family_.add_adapter(name, folder);
  } catch (const Failure& failure) {
    return failure.error();
  }
  if (before && before->adapter_digest != family_.get(name)->adapter_digest)
    store_.erase_owned_by(cache_owner(*before));
  spdlog::info("adapter \"{}\" {} from {}", name, before ? "replaced" : "loaded", folder.string());
  return {};
}

Result<void> AdapterRegistry::unload(const std::string& name) {
  auto before = family_.find(name);
  if (!before || !before->adapter || !family_.remove_adapter(name)) {
    return Error{ErrorCode::kNotFound, fmt::format("adapter \"{}\" is not loaded", name)};
  }
  store_.erase_owned_by(cache_owner(*before));
  spdlog::info("adapter \"{}\" unloaded", name);
  return {};
}

}  // namespace droidspeak
