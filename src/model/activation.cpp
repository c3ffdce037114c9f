#include "model/activation.h"

#include <algorithm>

namespace droidspeak {

int32_t activation_in(const Adapter* adapter, std::span<const int32_t> prompt) {
  if (adapter == nullptr || adapter->invocation.empty()) return 0;
  auto last = std::find_end(prompt.begin(), prompt.end(), adapter->invocation.begin(),
                            adapter->invocation.end());
  return last == prompt.end() ? kNeverActive : static_cast<int32_t>(last - prompt.begin());
}

Variant without_adapter(const Variant& variant) {
  Variant bare = variant;
  bare.adapter = nullptr;
  bare.adapter_digest = {};
  return bare;
}

std::shared_ptr<const Variant> answering(const std::shared_ptr<const Variant>& variant,
                                         std::span<const int32_t> prompt) {
  if (activation_in(variant->adapter.get(), prompt) != kNeverActive) return variant;
  return std::make_shared<const Variant>(without_adapter(*variant));
}

}  // namespace droidspeak
