#include "ops/cuda/steps/lora_table.h"

#include <algorithm>

#include "base/check.h"

namespace droidspeak::cuda {
namespace {

// Rows come first; behind them there is room for a range of every row of every operation.
size_t first_range(const LoraTable& table) {
  constexpr size_t kAlignment = 64;
  return (table.row_ranges().size_bytes() + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

void LoraTable::clear() {
  num_operations_ = 0;
  rows_ = 0;
  row_ranges_.clear();
  ranges_.clear();
}

void LoraTable::add(std::span<const LoraRows> corrections, int64_t rows) {
  check(num_operations_ == 0 || rows == rows_, "corrections of as many rows as the others");
  ++num_operations_;
  rows_ = rows;
  const size_t first = row_ranges_.size();
  row_ranges_.resize(first + static_cast<size_t>(rows), -1);
  for (const LoraRows& correction : corrections) {
    if (correction.begin == correction.end) continue;
    std::fill(row_ranges_.begin() + static_cast<std::ptrdiff_t>(first) + correction.begin,
              row_ranges_.begin() + static_cast<std::ptrdiff_t>(first) + correction.end,
              static_cast<int32_t>(ranges_.size()));
    ranges_.push_back(range_of(correction));
  }
}

void DeviceLoraTable::assign(const LoraTable& table) {
  if (on_device_ != nullptr && table == table_) return;
  table_ = table;
  const size_t first = first_range(table_);
  upload_.reserve(first + table_.row_ranges().size() * sizeof(LoraRange));
  std::byte* host = upload_.stage(first + table_.ranges().size_bytes());
  std::ranges::copy(std::as_bytes(table_.row_ranges()), host);
  std::ranges::copy(std::as_bytes(table_.ranges()), host + first);
  on_device_ = upload_.send();
}

LoraTableView DeviceLoraTable::operation(size_t index) const {
  check(index < table_.num_operations(), "an operation of the step");
  const auto* rows = reinterpret_cast<const int32_t*>(on_device_);
  return {.row_range = rows + index * static_cast<size_t>(table_.rows()),
          .ranges = reinterpret_cast<const LoraRange*>(on_device_ + first_range(table_))};
}

}  // namespace droidspeak::cuda
