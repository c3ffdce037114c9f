// Bytes of one entry, kept alive (and, in host memory, unevictable) while the handle lives.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "store/tier_report.h"

namespace droidspeak {

class PinnedEntry {
 public:
  PinnedEntry() = default;

  PinnedEntry(std::shared_ptr<const void> owner, std::span<const std::byte> bytes, Tier tier)
      : owner_(std::move(owner)), bytes_(bytes), tier_(tier) {}

  std::span<const std::byte> bytes() const { return bytes_; }

  Tier tier() const { return tier_; }  // where it was found

 private:
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
  Tier tier_ = Tier::kHost;
};

}  // namespace droidspeak
