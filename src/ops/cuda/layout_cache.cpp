#include "ops/cuda/layout_cache.h"

#include <algorithm>

#include "kv/kv_cache.h"

namespace droidspeak::cuda {
namespace {

// Only these blocks are looked at.
std::span<const int32_t> used_blocks(const SequenceSlice& slice) {
  const int32_t count = blocks_for(slice.first_position + slice.num_rows);
  return slice.blocks.first(static_cast<size_t>(count));
}

bool is_same(const SequenceSlice& a, const SequenceSlice& b) {
  return a.first_row == b.first_row && a.num_rows == b.num_rows &&
         a.first_position == b.first_position && std::ranges::equal(used_blocks(a), used_blocks(b));
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
    std::ranges::fill(blocks, 0);
    for (size_t i = 0; i < layout.on_host.size(); ++i) {
      const SequenceSlice& slice = layout.on_host[i];
      const auto first = static_cast<size_t>(slice.first_row);
      for (int32_t row = 0; row < slice.num_rows; ++row) {
        row_slice[first + static_cast<size_t>(row)] = static_cast<int32_t>(i);
        row_position[first + static_cast<size_t>(row)] = slice.first_position + row;
      }
      slice_row[i] = static_cast<int32_t>(slice.first_row);
      slice_rows[i] = slice.num_rows;
      slice_length[i] = slice.first_position + slice.num_rows;
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
    : entries_{Entry(device), Entry(device), Entry(device), Entry(device)} {}

const BatchLayout& LayoutCache::get(std::span<const SequenceSlice> slices) {
  for (const Entry& entry : entries_) {
    if (entry.holds(slices)) return entry.layout;
  }
  Entry& entry = entries_[next_];
  next_ = (next_ + 1) % kEntries;
  entry.assign(slices);
  return entry.layout;
}

bool LayoutCache::Entry::holds(std::span<const SequenceSlice> other) const {
  return !slices.empty() && std::ranges::equal(slices, other, is_same);
}

void LayoutCache::Entry::assign(std::span<const SequenceSlice> other) {
  keep(other);
  std::byte* host = upload.stage(Arrays::bytes_of(layout));
  const Arrays arrays(host, layout);
  arrays.fill(layout);
  const std::byte* sent = upload.send();
  auto on_device = [&](std::span<int32_t> array) {
    return reinterpret_cast<const int32_t*>(sent +
                                            (reinterpret_cast<std::byte*>(array.data()) - host));
  };
  layout.row_slice = on_device(arrays.row_slice);
  layout.row_position = on_device(arrays.row_position);
  layout.slice_row = on_device(arrays.slice_row);
  layout.slice_rows = on_device(arrays.slice_rows);
  layout.slice_length = on_device(arrays.slice_length);
  layout.blocks = on_device(arrays.blocks);
}

// The caller's blocks may go, ours stay.
void LayoutCache::Entry::keep(std::span<const SequenceSlice> other) {
  blocks.clear();
  slices.assign(other.begin(), other.end());
  layout = BatchLayout{};
  layout.num_slices = static_cast<int32_t>(slices.size());
  for (const SequenceSlice& slice : slices) {
    const std::span<const int32_t> used = used_blocks(slice);
    blocks.insert(blocks.end(), used.begin(), used.end());
    const auto end = static_cast<int32_t>(slice.first_row) + slice.num_rows;
    layout.num_rows = std::max(layout.num_rows, end);
    layout.max_rows = std::max(layout.max_rows, slice.num_rows);
    layout.max_length = std::max(layout.max_length, slice.first_position + slice.num_rows);
    layout.max_blocks = std::max(layout.max_blocks, static_cast<int32_t>(used.size()));
  }
  size_t first = 0;
  for (SequenceSlice& slice : slices) {
    const size_t count = used_blocks(slice).size();
    slice.blocks = std::span(blocks).subspan(first, count);
    first += count;
  }
  layout.on_host = slices;
}

}  // namespace droidspeak::cuda
