// Bytes of one entry, kept alive (and, in host memory, unevictable) while the handle lives.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "store/entry_coding.h"
#include "store/tier_report.h"

namespace droidspeak {

class PinnedEntry {
 public:
  PinnedEntry() = default;

  PinnedEntry(std::shared_ptr<const void> owner,
              std::span<const std::byte> bytes,
              Tier tier,
              std::shared_ptr<const EntryCoding> coding = nullptr)
      : owner_(std::move(owner)), bytes_(bytes), tier_(tier), coding_(std::move(coding)) {}

  // Values, or a piece.
  std::span<const std::byte> bytes() const { return bytes_; }

  // Of a piece, whose places and sizes are checked and whose streams are not; null: values. Only a
  // store with a decoder gives pieces (StoreOptions).
  const EntryCoding* coding() const { return coding_.get(); }

  // Of the values.
  size_t value_bytes() const { return coding_ ? coding_->value_bytes() : bytes_.size(); }

  Tier tier() const { return tier_; }  // where it was found

 private:
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
  Tier tier_ = Tier::kHost;
  std::shared_ptr<const EntryCoding> coding_;
};

}  // namespace droidspeak
