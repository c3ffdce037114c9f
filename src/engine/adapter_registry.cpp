#include "engine/adapter_registry.h"

#include <vector>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

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
  if (before && before->adapter_digest != family_.get(name)->adapter_digest) forget(*before);
  spdlog::info("adapter \"{}\" {} from {}", name, before ? "replaced" : "loaded", folder.string());
  return {};
}

Result<void> AdapterRegistry::unload(const std::string& name) {
  auto before = family_.find(name);
  if (!before || !before->adapter || !family_.remove_adapter(name)) {
    return Error{ErrorCode::kNotFound, fmt::format("adapter \"{}\" is not loaded", name)};
  }
  forget(*before);
  spdlog::info("adapter \"{}\" unloaded", name);
  return {};
}

void AdapterRegistry::note_stored(const Variant& writer, std::span<const Digest> keys) {
  if (!writer.adapter) return;  // full checkpoints stay
  std::deque<Digest>& known = stored_keys_[writer.adapter_digest];
  known.insert(known.end(), keys.begin(), keys.end());
  while (known.size() > kMaxKeys) known.pop_front();
}

void AdapterRegistry::forget(const Variant& variant) {
  auto known = stored_keys_.find(variant.adapter_digest);
  if (known == stored_keys_.end()) return;
  store_.erase(std::vector<Digest>(known->second.begin(), known->second.end()));
  stored_keys_.erase(known);
}

}  // namespace droidspeak
