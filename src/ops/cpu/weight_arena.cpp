#include "ops/cpu/weight_arena.h"

#include <algorithm>
#include <cstdint>

namespace droidspeak::cpu {
namespace {

constexpr size_t kPieceBytes = size_t{64} << 20;
constexpr size_t kHugePage = size_t{2} << 20;

size_t round_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

WeightMemory WeightArena::take(size_t bytes) {
  bytes = round_up(bytes, 64);
  if (piece_ == nullptr || used_ + bytes > piece_->bytes()) {
    piece_ = std::make_shared<Buffer>(
        device_.allocate(round_up(std::max(bytes, kPieceBytes), kHugePage) + kHugePage));
    // Memory before the first huge page would come in small ones.
    const auto address = reinterpret_cast<uintptr_t>(piece_->data());
    used_ = round_up(address, kHugePage) - address;
  }
  auto* data = static_cast<std::byte*>(piece_->data()) + used_;
  used_ += bytes;
  return {piece_, data, bytes};
}

}  // namespace droidspeak::cpu
