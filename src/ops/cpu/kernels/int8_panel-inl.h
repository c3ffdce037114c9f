// Tiles of int8 rows times weight panels, over any of the inner steps of int8_dot-inl.h.
#if defined(DROIDSPEAK_INT8_PANEL_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef DROIDSPEAK_INT8_PANEL_TOGGLE
#undef DROIDSPEAK_INT8_PANEL_TOGGLE
#else
#define DROIDSPEAK_INT8_PANEL_TOGGLE
#endif

#include <array>
#include <utility>

#include <hwy/highway.h>

#include "ops/cpu/kernels.h"
#include "ops/cpu/kernels/int8_dot-inl.h"
#include "ops/cpu/kernels/int8_tile.h"
#include "ops/cpu/kernels/store_tile-inl.h"
#include "ops/cpu/kernels/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE {

// A tile of at most so many rows reads the packed quants; more rows share an expanded copy.
inline constexpr int kMaxPackedRows = 4;

enum class Quants { kPacked, kExpanded };

// A panel's quants and f32 scales and minima, [columns / 32][16]; minima null without.
struct PanelView {
  const uint8_t* quants;
  const float* scales;
  const float* minima;
};

// sums: [kRows][kPanelWidth].
template <class Dot, int kRows, bool kHasMinimum, Quants kQuants>
void multiply_int8_tile(int64_t blocks,
                        Int8Tile<kInt8TileRows, typename Dot::Activation> tile,
                        PanelView panel,
                        float* sums) {
  const hn::CappedTag<float, kPanelWidth> d;
  using V = hn::Vec<decltype(d)>;
  constexpr bool kHasStart = !kHasMinimum;
  constexpr int kBytes = kQuants == Quants::kPacked ? Dot::kPackedBytes : Dot::kExpandedBytes;
  for (int64_t b = 0; b < blocks; ++b) {
    typename Dot::Sums dots[kRows];
    HWY_UNROLL(12)
    for (int i = 0; i < kRows; ++i) dots[i] = Dot::template begin<kHasStart>(tile.starts + i);
    HWY_UNROLL(4)
    for (int step = 0; step < kQuantBlock / 8; ++step, panel.quants += kBytes) {
      typename Dot::Weights weights;
      if constexpr (kQuants == Quants::kPacked) {
        weights = Dot::load_packed(panel.quants);
      } else {
        weights = Dot::load_expanded(panel.quants);
      }
      HWY_UNROLL(2)
      for (int part = 0; part < 2; ++part) {
        const auto* a = tile.quants + (2 * step + part) * 4 * kInt8TileRows;
        HWY_UNROLL(12)
        for (int i = 0; i < kRows; ++i) Dot::add(dots[i], weights, part, a + 4 * i);
      }
    }
    HWY_UNROLL(12)
    for (int i = 0; i < kRows; ++i) {
      hn::Vec<SumsTag> whole[kSumsVectors];
      Dot::template total<kHasStart>(dots[i], tile.starts + i, whole);
      const V scale = hn::Set(d, tile.scales[i]);
      HWY_UNROLL(4)
      for (int j = 0; j < kSumsVectors; ++j) {
        float* to = sums + i * kPanelWidth + j * kSumsLanes;
        const V factor = hn::Mul(scale, hn::LoadU(d, panel.scales + j * kSumsLanes));
        V sum = b == 0 ? hn::Zero(d) : hn::LoadU(d, to);
        sum = hn::MulAdd(hn::ConvertTo(d, whole[j]), factor, sum);
        if constexpr (kHasMinimum) {
          sum = hn::MulAdd(hn::Set(d, tile.scaled_sums[i]),
                           hn::LoadU(d, panel.minima + j * kSumsLanes), sum);
        }
        hn::StoreU(sum, d, to);
      }
    }
    tile.advance();
    panel.scales += kPanelWidth;
    panel.minima += kHasMinimum ? kPanelWidth : 0;
  }
}

template <class Dot>
using Int8TileFunction = void (*)(int64_t, Int8Tile<kInt8TileRows, typename Dot::Activation>,
                                  PanelView, float*);

template <class Dot, bool kHasMinimum, Quants kQuants, int... kRows>
constexpr std::array<Int8TileFunction<Dot>, sizeof...(kRows)> int8_tile_functions(
    std::integer_sequence<int, kRows...>) {
  return {multiply_int8_tile<Dot, kRows + 1, kHasMinimum, kQuants>...};
}

template <class Dot, bool kHasMinimum>
Int8TileFunction<Dot> int8_tile_function(Quants quants, int64_t rows) {
  constexpr int kMaxPacked = Dot::kExpands ? kMaxPackedRows : kInt8TileRows;
  static constexpr auto kPacked = int8_tile_functions<Dot, kHasMinimum, Quants::kPacked>(
      std::make_integer_sequence<int, kMaxPacked>());
  const auto index = static_cast<size_t>(rows - 1);
  if constexpr (Dot::kExpands) {
    static constexpr auto kExpanded = int8_tile_functions<Dot, kHasMinimum, Quants::kExpanded>(
        std::make_integer_sequence<int, kInt8TileRows>());
    if (quants == Quants::kExpanded) return kExpanded[index];
  }
  return kPacked[index];
}

// Scales and minima as f32, then the expanded quants of one panel, then a tile's sums.
template <class Dot>
size_t int8_scratch_bytes(int64_t columns) {
  const auto scales = static_cast<size_t>(columns / kQuantBlock) * kPanelWidth * 2 * sizeof(float);
  const auto quants = static_cast<size_t>(columns / 8) * Dot::kExpandedBytes;
  return scales + quants + kInt8TileRows * kPanelWidth * sizeof(float);
}

// A panel in scratch memory, and room for a tile's sums behind it.
template <class Dot>
struct PanelScratch {
  float* scales;
  float* minima;
  uint8_t* quants;
  float* sums;

  PanelScratch(std::byte* scratch, int64_t columns) {
    const int64_t num_scales = columns / kQuantBlock * kPanelWidth;
    scales = reinterpret_cast<float*>(scratch);
    minima = scales + num_scales;
    quants = reinterpret_cast<uint8_t*>(minima + num_scales);
    sums = reinterpret_cast<float*>(quants + columns / 8 * Dot::kExpandedBytes);
  }
};

HWY_INLINE void expand_scales(ScaleKind kind, const std::byte* from, int64_t size, float* to) {
  if (kind == ScaleKind::kF16) {
    convert_row(reinterpret_cast<const hwy::float16_t*>(from), size, 1.0f, to);
  } else {
    convert_row(reinterpret_cast<const float*>(from), size, 1.0f, to);
  }
}

template <class Dot>
PanelView open_panel(const Segment& weights, int64_t index, Quants quants, PanelScratch<Dot>& scratch) {
  const std::byte* panel = weights.panels + static_cast<size_t>(index) * weights.panel_bytes;
  const auto* packed = reinterpret_cast<const uint8_t*>(panel);
  const int64_t steps = weights.columns / 8;
  const int64_t num_scales = weights.columns / kQuantBlock * kPanelWidth;
  const std::byte* scales = panel + steps * Dot::kPackedBytes;
  const int64_t scale_bytes = weights.format.scales == ScaleKind::kF16 ? 2 : 4;
  expand_scales(weights.format.scales, scales, num_scales, scratch.scales);
  PanelView view{packed, scratch.scales, nullptr};
  if (weights.format.has_minimum) {
    expand_scales(weights.format.scales, scales + num_scales * scale_bytes, num_scales,
                  scratch.minima);
    view.minima = scratch.minima;
  }
  if (quants == Quants::kPacked) return view;
  for (int64_t i = 0; i < steps; ++i) {
    Dot::store_expanded(Dot::load_packed(packed + i * Dot::kPackedBytes),
                        scratch.quants + i * Dot::kExpandedBytes);
  }
  view.quants = scratch.quants;
  return view;
}

template <class Dot>
void multiply_int8(const LinearTask& task) {
  using Tile = Int8Tile<kInt8TileRows, typename Dot::Activation>;
  const Segment& weights = *task.weights;
  const int64_t blocks = weights.columns / kQuantBlock;
  const size_t tile_bytes = Tile::bytes(weights.columns);
  const int64_t last_row = std::min(task.tile_end * kInt8TileRows, task.num_rows);
  const bool is_small = last_row - task.tile_begin * kInt8TileRows <= kMaxPackedRows;
  const Quants quants = !Dot::kExpands || is_small ? Quants::kPacked : Quants::kExpanded;
  PanelScratch<Dot> scratch(task.scratch, weights.columns);
  for (int64_t panel = task.panel_begin; panel < task.panel_end; ++panel) {
    const PanelView view = open_panel<Dot>(weights, panel, quants, scratch);
    for (int64_t t = task.tile_begin; t < task.tile_end; ++t) {
      const int64_t row = t * kInt8TileRows;
      const int64_t rows = std::min<int64_t>(kInt8TileRows, task.num_rows - row);
      const Tile tile(const_cast<std::byte*>(task.tiles) + static_cast<size_t>(t) * tile_bytes,
                      weights.columns);
      auto function = weights.format.has_minimum ? int8_tile_function<Dot, true>(quants, rows)
                                                 : int8_tile_function<Dot, false>(quants, rows);
      function(blocks, tile, view, scratch.sums);
      store_tile(task, row, panel, rows, scratch.sums);
    }
  }
}

}  // namespace droidspeak::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
