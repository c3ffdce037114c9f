// Turns the slices of a batch into a BatchLayout. All layers of a step ask with the same slices, so
// the last few layouts stay in device memory and are found again by comparing.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "ops/cuda/steps/batch_layout.h"
#include "ops/cuda/steps/upload.h"

namespace droidspeak::cuda {

// One layout in device memory of its own, which stays where it is as long as it does not grow.
class DeviceLayout {
 public:
  explicit DeviceLayout(CudaDevice& device) : upload_(device) {}

  const BatchLayout& layout() const { return layout_; }

  bool holds(std::span<const SequenceSlice> slices) const;

  // What a layout has room for, so that others fit where it lies.
  struct Room {
    int32_t blocks = 0;  // of every slice
    int32_t rows = 0;    // and as many slices; those behind the given ones have no rows
  };

  void assign(std::span<const SequenceSlice> slices, const Room& room);

  void assign(std::span<const SequenceSlice> slices) { assign(slices, Room()); }

 private:
  void keep(std::span<const SequenceSlice> slices);

  std::vector<int32_t> blocks_;  // of all slices, one after the other
  std::vector<int32_t> positions_;
  std::vector<SequenceSlice> slices_;
  BatchLayout layout_;
  Upload upload_;
};

class LayoutCache {
 public:
  explicit LayoutCache(CudaDevice& device);

  // Valid for the operations queued next, until kEntries other layouts were asked for. Rows that no
  // slice covers have row_slice -1.
  const BatchLayout& get(std::span<const SequenceSlice> slices);

 private:
  static constexpr size_t kEntries = 4;

  std::array<DeviceLayout, kEntries> entries_;
  size_t next_ = 0;
};

}  // namespace droidspeak::cuda
