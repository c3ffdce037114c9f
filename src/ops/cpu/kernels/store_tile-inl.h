// The last step of every linear kernel: a finished tile goes to the output, compiled once per
// target.
#if defined(DROIDSPEAK_STORE_TILE_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef DROIDSPEAK_STORE_TILE_TOGGLE
#undef DROIDSPEAK_STORE_TILE_TOGGLE
#else
#define DROIDSPEAK_STORE_TILE_TOGGLE
#endif

#include <algorithm>

#include <hwy/highway.h>

#include "ops/cpu/kernels.h"

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE void store_part(
    const LinearOutput& out, float* to, const float* bias, const float* tile, int64_t columns) {
  for (int64_t i = 0; i < columns; ++i) {
    const float value = bias != nullptr ? tile[i] + bias[i] : tile[i];
    to[i] = out.accumulate == Accumulate::kAdd ? to[i] + value : value;
  }
}

// tile: [rows][kPanelWidth], product of input rows from `row` on and panel `panel` of the weights.
HWY_INLINE void store_tile(
    const LinearTask& task, int64_t row, int64_t panel, int64_t rows, const float* tile) {
  const hn::CappedTag<float, kPanelWidth> d;
  constexpr auto kLanes = static_cast<int64_t>(hn::MaxLanes(d));
  const Segment& weights = *task.weights;
  const int64_t column = weights.first_row + panel * kPanelWidth;
  const int64_t columns = std::min<int64_t>(kPanelWidth, weights.num_rows - panel * kPanelWidth);
  const float* bias = task.out.bias != nullptr ? task.out.bias + column : nullptr;
  for (int64_t i = 0; i < rows; ++i, tile += kPanelWidth) {
    float* to = task.out.data + (row + i) * task.out.stride + column;
    if (columns < kPanelWidth) {
      store_part(task.out, to, bias, tile, columns);
      continue;
    }
    for (int64_t j = 0; j < kPanelWidth; j += kLanes) {
      auto value = hn::LoadU(d, tile + j);
      if (bias != nullptr) value = hn::Add(value, hn::LoadU(d, bias + j));
      if (task.out.accumulate == Accumulate::kAdd) value = hn::Add(hn::LoadU(d, to + j), value);
      hn::StoreU(value, d, to + j);
    }
  }
}

}  // namespace droidspeak::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
