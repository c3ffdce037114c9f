#include "store/eviction/eviction_policy.h"

#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "store/eviction/lru.h"
#include "store/eviction/s3_fifo.h"

namespace droidspeak {
namespace {

struct NamedPolicy {
  std::string_view name;
  std::unique_ptr<EvictionPolicy> (*make)();
};

template <class Policy>
std::unique_ptr<EvictionPolicy> make() {
  return std::make_unique<Policy>();
}

constexpr std::array kPolicies = {
    NamedPolicy{"s3fifo", make<S3FifoPolicy>},
    NamedPolicy{"lru", make<LruPolicy>},
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_eviction_policy(std::string_view name) {
  for (const NamedPolicy& policy : kPolicies) {
    if (policy.name == name) return policy.make();
  }
  throw Failure(ErrorCode::kInvalidArgument,
                fmt::format("eviction policy \"{}\" is not known; known: {}", name,
                            fmt::join(eviction_policy_names(), ", ")));
}

std::vector<std::string> eviction_policy_names() {
  std::vector<std::string> names;
  names.reserve(kPolicies.size());
  for (const NamedPolicy& policy : kPolicies) names.emplace_back(policy.name);
  return names;
}

}  // namespace droidspeak
