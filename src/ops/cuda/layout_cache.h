// Turns the slices of a batch into a BatchLayout. All layers of a step ask with the same slices, so
// the last few layouts stay in device memory and are found again by comparing.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "ops/cuda/batch_layout.h"
#include "ops/cuda/upload.h"

namespace droidspeak::cuda {

class LayoutCache {
 public:
  explicit LayoutCache(CudaDevice& device);

  // Valid for the operations queued next, until kEntries other layouts were asked for. Rows that no
  // slice covers have row_slice -1.
  const BatchLayout& get(std::span<const SequenceSlice> slices);

 private:
  static constexpr size_t kEntries = 4;

  struct Entry {
    explicit Entry(CudaDevice& device) : upload(device) {}

    bool holds(std::span<const SequenceSlice> other) const;
    void assign(std::span<const SequenceSlice> other);
    void keep(std::span<const SequenceSlice> other);

    std::vector<int32_t> blocks;  // of all slices, one after the other
    std::vector<SequenceSlice> slices;
    BatchLayout layout;
    Upload upload;
  };

  std::array<Entry, kEntries> entries_;
  size_t next_ = 0;
};

}  // namespace droidspeak::cuda
