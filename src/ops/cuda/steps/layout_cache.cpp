#include "ops/cuda/steps/layout_cache.h"

#include <algorithm>

#include "kv/kv_cache.h"

namespace droidspeak::cuda {
namespace {

// Only these blocks are looked at.
std::span<const int32_t> used_blocks(const SequenceSlice& slice) {
  return slice.blocks.first(static_cast<size_t>(blocks_for(slice.length())));
}

bool is_same(const SequenceSlice& a, const SequenceSlice& b) {
  return a.first_row == b.first_row && a.num_rows == b.num_rows &&
         a.first_position == b.first_position && std::ranges::equal(a.positions, b.positions) &&
         std::ranges::equal(used_blocks(a), used_blocks(b));
}

// The arrays of a layout, one after the other in one piece of memory.
struct Arrays {
  std::span<int32_t> row_slice;
  std::span<int32_t> row_position;
  std::span<int32_t> slice_row;
  std::span<int32_t> slice_rows;
  std::span<int32_t> slice_length;
  std::span<int32_t> blocks;

  static size_t bytes_of(const BatchLayout& layout) {
    return 2 * room(layout.num_rows) + 3 * room(layout.num_slices) +
           room(int64_t{layout.num_slices} * layout.max_blocks);
  }

  Arrays(std::byte* memory, const BatchLayout& layout) {
    auto take = [&](int64_t count) {
      auto* first = reinterpret_cast<int32_t*>(memory);
      memory += room(count);
      return std::span(first, static_cast<size_t>(count));
    };
    row_slice = take(layout.num_rows);
    row_position = take(layout.num_rows);
    slice_row = take(layout.num_slices);
    slice_rows = take(layout.num_slices);
    slice_length = take(layout.num_slices);
    blocks = take(int64_t{layout.num_slices} * layout.max_blocks);
  }

  void fill(const BatchLayout& layout) const {
    std::ranges::fill(row_slice, -1);
    std::ranges::fill(row_position, 0);
    std::ranges::fill(slice_row, 0);
    std::ranges::fill(slice_rows, 0);
    std::ranges::fill(slice_length, 0);
    std::ranges::fill(blocks, 0);
    for (size_t i = 0; i < layout.on_host.size(); ++i) {
      const SequenceSlice& slice = layout.on_host[i];
      const auto first = static_cast<size_t>(slice.first_row);
      for (int32_t row = 0; row < slice.num_rows; ++row) {
        row_slice[first + static_cast<size_t>(row)] = static_cast<int32_t>(i);
        row_position[first + static_cast<size_t>(row)] = slice.position(row);
      }
      slice_row[i] = static_cast<int32_t>(slice.first_row);
      slice_rows[i] = slice.num_rows;
      slice_length[i] = slice.length();
      const size_t at = i * static_cast<size_t>(layout.max_blocks);
      std::ranges::copy(slice.blocks, blocks.subspan(at).begin());
    }
  }

 private:
  static constexpr size_t kAlignment = 64;

  static size_t room(int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(int32_t);
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
};

}  // namespace

LayoutCache::LayoutCache(CudaDevice& device)
    : entries_{DeviceLayout(device), DeviceLayout(device), DeviceLayout(device),
               DeviceLayout(device)} {}

const BatchLayout& LayoutCache::get(std::span<const SequenceSlice> slices) {
  for (const DeviceLayout& entry : entries_) {
    if (entry.holds(slices)) return entry.layout();
  }
  DeviceLayout& entry = entries_[next_];
  next_ = (next_ + 1) % kEntries;
  entry.assign(slices);
  return entry.layout();
}

bool DeviceLayout::holds(std::span<const SequenceSlice> slices) const {
  return !slices_.empty() && std::ranges::equal(slices_, slices, is_same);
}

void DeviceLayout::assign(std::span<const SequenceSlice> slices, const Room& room) {
  keep(slices);
  layout_.max_blocks = std::max(layout_.max_blocks, room.blocks);
  layout_.min_length = room.blocks * kBlockTokens;
  layout_.num_rows = std::max(layout_.num_rows, room.rows);
  layout_.num_slices = std::max(layout_.num_slices, room.rows);
  std::byte* host = upload_.stage(Arrays::bytes_of(layout_));
  const Arrays arrays(host, layout_);
  arrays.fill(layout_);
  const std::byte* sent = upload_.send();
  auto on_device = [&](std::span<int32_t> array) {
    return reinterpret_cast<const int32_t*>(sent +
                                            (reinterpret_cast<std::byte*>(array.data()) - host));
  };
  layout_.row_slice = on_device(arrays.row_slice);
  layout_.row_position = on_device(arrays.row_position);
  layout_.slice_row = on_device(arrays.slice_row);
  layout_.slice_rows = on_device(arrays.slice_rows);
  layout_.slice_length = on_device(arrays.slice_length);
  layout_.blocks = on_device(arrays.blocks);
}

// The caller's blocks and positions may go, ours stay.
void DeviceLayout::keep(std::span<const SequenceSlice> slices) {
  blocks_.clear();
  positions_.clear();
  slices_.assign(slices.begin(), slices.end());
  layout_ = BatchLayout{};
  layout_.num_slices = static_cast<int32_t>(slices_.size());
  for (const SequenceSlice& slice : slices_) {
    const std::span<const int32_t> used = used_blocks(slice);
    blocks_.insert(blocks_.end(), used.begin(), used.end());
    positions_.insert(positions_.end(), slice.positions.begin(), slice.positions.end());
    const auto end = static_cast<int32_t>(slice.first_row) + slice.num_rows;
    layout_.num_rows = std::max(layout_.num_rows, end);
    layout_.max_rows = std::max(layout_.max_rows, slice.num_rows);
    layout_.max_length = std::max(layout_.max_length, slice.length());
    layout_.max_blocks = std::max(layout_.max_blocks, static_cast<int32_t>(used.size()));
  }
  std::span<const int32_t> blocks = blocks_;
  std::span<const int32_t> positions = positions_;
  for (SequenceSlice& slice : slices_) {
    const size_t num_blocks = used_blocks(slice).size();
    const size_t num_positions = slice.positions.size();
    slice.blocks = blocks.first(num_blocks);
    slice.positions = positions.first(num_positions);
    blocks = blocks.subspan(num_blocks);
    positions = positions.subspan(num_positions);
  }
  layout_.on_host = slices_;
}

}  // namespace droidspeak::cuda
