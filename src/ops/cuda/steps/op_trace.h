// A list of operations with everything that their launches depend on: addresses, shapes, numbers.
// Equal traces make equal launches, so what was recorded for one can run for the other; memory that
// was freed meanwhile is named by no new trace. Slices and corrections lie in device memory that is
// written before every run: only the room for them is part of the trace.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/cuda/products/cuda_matrix.h"
#include "ops/cuda/steps/layout_cache.h"
#include "ops/cuda/steps/lora_table.h"
#include "ops/ops.h"

namespace droidspeak::cuda {

enum class Operation : uint64_t {
  kLinear,
  kLora,
  kNorm,
  kActivation,
  kScale,
  kAddScaled,
  kExperts,
  kGateRows,
  kAnnounce,
  kRotate,
  kAttention,
  kCopy,
};

class OpTrace {
 public:
  void clear();

  template <class... Arguments>
  void add(Operation operation, const Arguments&... arguments) {
    add(static_cast<uint64_t>(operation));
    (add(arguments), ...);
  }

  template <std::integral T>
  void add(T value) {
    words_.push_back(static_cast<uint64_t>(value));
  }

  void add(float value) { words_.push_back(std::bit_cast<uint32_t>(value)); }

  void add(const void* address) { words_.push_back(reinterpret_cast<uintptr_t>(address)); }

  void add(Accumulate accumulate) { add(static_cast<uint64_t>(accumulate)); }

  void add(Activation activation) { add(static_cast<uint64_t>(activation)); }

  void add(const TensorView& view);

  void add(const WeightMatrix& matrix);

  void add(const RopeOptions& options);
  void add(const AttentionOptions& options);
  void add(const KvLayerView& kv);
  // Slices among so many rows.
  void add_slices(std::span<const SequenceSlice> slices, int64_t rows);
  void add_lora(std::span<const LoraRows> ranges, TensorView in, TensorView low, TensorView out);

  // An operation that depends on more than its trace could say.
  void spoil() { is_repeatable_ = false; }

  bool is_repeatable() const { return is_repeatable_; }

  // Those of all operations.
  std::span<const SequenceSlice> slices() const { return slices_; }

  // That the trace stands for: blocks of a slice, a power of two, and rows.
  const DeviceLayout::Room& room() const { return room_; }

  // Of all operations.
  const LoraTable& corrections() const { return corrections_; }

  bool operator==(const OpTrace& other) const { return words_ == other.words_; }

 private:
  std::vector<uint64_t> words_;
  std::span<const SequenceSlice> slices_;
  DeviceLayout::Room room_;
  LoraTable corrections_;
  bool is_repeatable_ = true;
};

}  // namespace droidspeak::cuda
