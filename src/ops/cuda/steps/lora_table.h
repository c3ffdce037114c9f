// The corrections of all operations of a step. They lie in device memory that is written before the
// step, so that its launches name no adapter: a recorded step serves any mixture of them.
#pragma once

#include <span>
#include <vector>

#include "ops/cuda/products/lora.h"
#include "ops/cuda/steps/upload.h"

namespace droidspeak::cuda {

// What a step adds, operation by operation.
class LoraTable {
 public:
  void clear();

  // The next operation, over `rows` rows; every operation of a step has as many.
  void add(std::span<const LoraRows> corrections, int64_t rows);

  size_t num_operations() const { return num_operations_; }

  int64_t rows() const { return rows_; }

  std::span<const int32_t> row_ranges() const { return row_ranges_; }

  std::span<const LoraRange> ranges() const { return ranges_; }

  bool operator==(const LoraTable&) const = default;

 private:
  size_t num_operations_ = 0;
  int64_t rows_ = 0;
  std::vector<int32_t> row_ranges_;  // [operations, rows]: places in `ranges_`, or -1
  std::vector<LoraRange> ranges_;
};

// One table in device memory of its own, which stays where it is while the number of operations and
// their rows do.
class DeviceLoraTable {
 public:
  explicit DeviceLoraTable(CudaDevice& device) : upload_(device) {}

  void assign(const LoraTable& table);

  LoraTableView operation(size_t index) const;

 private:
  LoraTable table_;
  Upload upload_;
  const std::byte* on_device_ = nullptr;
};

}  // namespace droidspeak::cuda
