// Tiles of int8 rows times weight panels, over any of the inner steps of int8_dot-inl.h.
#if defined(DROIDSPEAK_INT8_PANEL_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef DROIDSPEAK_INT8_PANEL_TOGGLE
#undef DROIDSPEAK_INT8_PANEL_TOGGLE
#else
#define DROIDSPEAK_INT8_PANEL_TOGGLE
#endif

#include <array>
#include <atomic>
#include <utility>

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "ops/cpu/kernels.h"
#include "ops/cpu/kernels/int8_block-inl.h"
#include "ops/cpu/kernels/int8_dot-inl.h"
#include "ops/cpu/kernels/int8_tile.h"
#include "ops/cpu/kernels/store_tile-inl.h"
#include "ops/cpu/kernels/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE {

// What a kernel fetches from memory while it computes: `bytes` from `from` on, and as many for
// every further block.
struct Ahead {
  const uint8_t* from;
  int64_t bytes;
};

// How far ahead packed quants are fetched: the next panel follows without a gap.
inline constexpr int kAheadBytes = 4096;

// Adds a block's products to the 16 sums of one row; `index` of the block's scales.
template <bool kHasMinimum, class Block>
HWY_INLINE void add_block(const hn::Vec<SumsTag>* dots,
                          const Block& block,
                          int index,
                          float scale,
                          float scaled_sum,
                          hn::Vec<FloatTag>* sums) {
  const FloatTag d;
  HWY_UNROLL(4)
  for (int j = 0; j < kSumsVectors; ++j) {
    const auto factor = hn::Mul(hn::Set(d, scale), block.scale(index, j * kSumsLanes));
    sums[j] = hn::MulAdd(hn::ConvertTo(d, dots[j]), factor, sums[j]);
    if constexpr (kHasMinimum)
      sums[j] = hn::MulAdd(hn::Set(d, scaled_sum), block.minimum(j * kSumsLanes), sums[j]);
  }
}

// Sums of a tile's rows over the blocks of a panel, in registers where there are enough of them.
template <int kRows>
class TileSums {
 public:
  // Half of the registers are for the sums inside a block.
  static constexpr bool kInMemory = kRows * kSumsVectors > (HWY_MAX_BYTES == 64 ? 16 : 4);

  explicit TileSums(float* out) : out_(out) {
    HWY_UNROLL(12)
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kSumsVectors; ++j) sums_[i][j] = hn::Zero(FloatTag());
      if (kInMemory) store(i);
    }
  }

  HWY_INLINE hn::Vec<FloatTag>* begin(int row) {
    if (kInMemory) {
      for (int j = 0; j < kSumsVectors; ++j) sums_[row][j] = hn::LoadU(FloatTag(), at(row, j));
    }
    return sums_[row];
  }

  HWY_INLINE void end(int row) {
    if (kInMemory) store(row);
  }

  HWY_INLINE void finish() {
    HWY_UNROLL(12)
    for (int i = 0; i < kRows; ++i) {
      if (!kInMemory) store(i);
    }
  }

 private:
  HWY_INLINE float* at(int row, int j) { return out_ + row * kPanelWidth + j * kSumsLanes; }

  HWY_INLINE void store(int row) {
    for (int j = 0; j < kSumsVectors; ++j) hn::StoreU(sums_[row][j], FloatTag(), at(row, j));
  }

  float* out_;
  hn::Vec<FloatTag> sums_[kRows][kSumsVectors];
};

// The first part's total in units of the second, plus *start if kHasStart.
template <bool kHasStart>
HWY_INLINE void to_second_part(const int32_t* start, hn::Vec<SumsTag>* total) {
  for (int j = 0; j < kSumsVectors; ++j) {
    total[j] = hn::ShiftLeft<kPartShift>(total[j]);
    if constexpr (kHasStart) total[j] = hn::Add(total[j], hn::Set(SumsTag(), *start));
  }
}

// The products of a block, or of the part of it that has one scale, in integers, row by row.
template <class Dot, int kRows, int kParts, bool kHasStart>
class BlockDots {
  static constexpr int kScales = scales_of_block(Dot::kKind);

 public:
  // An implicit one would not be compiled for the target (NEON).
  HWY_INLINE BlockDots() {}

  // `index` of the block's scales.
  template <class Block, int kInterleave>
  HWY_INLINE void multiply(
      const Block& block,
      const Int8Tile<kInterleave, typename Dot::Activation, kParts, kScales>& tile,
      int index) {
    const int32_t* starts = tile.starts + index * kInterleave;
    HWY_UNROLL(12)
    for (int i = 0; i < kRows; ++i) {
      sums_[i] = Dot::template begin<kStartsAtOnce>(starts + i);
    }
    add_part<Block, kInterleave>(block, tile.quants, index);
    if constexpr (kParts == 2) {
      HWY_UNROLL(12)
      for (int i = 0; i < kRows; ++i) {
        Dot::template total<false>(sums_[i], nullptr, first_[i]);
        to_second_part<kHasStart>(starts + i, first_[i]);
        if constexpr (Dot::kIsWide) {
          sums_[i] = Dot::resume(first_[i]);
        } else {
          sums_[i] = Dot::template begin<false>(nullptr);
        }
      }
      add_part<Block, kInterleave>(block, tile.quants + kQuantBlock * kInterleave, index);
    }
  }

  HWY_INLINE void total(int row, const int32_t* start, hn::Vec<SumsTag>* out) const {
    Dot::template total<kStartsAtOnce>(sums_[row], start, out);
    if constexpr (kParts == 2 && !Dot::kIsWide) {
      for (int j = 0; j < kSumsVectors; ++j) out[j] = hn::Add(out[j], first_[row][j]);
    }
  }

 private:
  static constexpr bool kStartsAtOnce = kHasStart && kParts == 1;
  static constexpr int kQuads = kQuantBlock / 4 / kScales;

  template <class Block, int kInterleave>
  HWY_INLINE void add_part(const Block& block, const typename Dot::Activation* quants, int index) {
    HWY_UNROLL(8)
    for (int i = 0; i < kQuads; ++i) {
      const typename Dot::Quad quad = block.load(index * kQuads + i);
      const auto* a = quants + (index * kQuads + i) * 4 * kInterleave;
      HWY_UNROLL(12)
      for (int row = 0; row < kRows; ++row) Dot::add(sums_[row], quad, a + 4 * row);
    }
  }

  typename Dot::Sums sums_[kRows];
  hn::Vec<SumsTag> first_[kRows][kSumsVectors];
};

// out: [kRows][kPanelWidth].
template <class Dot, int kRows, int kParts, bool kHasMinimum, class Block>
void multiply_int8_tile(
    int64_t columns, std::byte* input, const uint8_t* panel, Ahead ahead, float* out) {
  constexpr int kInterleave = Block::kIsPacked ? kRows : kInt8TileRows;
  constexpr int kScales = scales_of_block(Dot::kKind);
  Int8Tile<kInterleave, typename Dot::Activation, kParts, kScales> tile(input, columns);
  const int64_t blocks = columns / kQuantBlock;
  Block block(panel);
  TileSums<kRows> sums(out);
  for (int64_t b = 0; b < blocks; ++b, block.advance(), tile.advance()) {
    for (int64_t i = 0; i < ahead.bytes; i += 64) hwy::Prefetch(ahead.from + i);
    ahead.from += ahead.bytes;
    HWY_UNROLL(2)
    for (int index = 0; index < kScales; ++index) {
      BlockDots<Dot, kRows, kParts, !kHasMinimum> dots;
      dots.template multiply<Block, kInterleave>(block, tile, index);
      HWY_UNROLL(12)
      for (int i = 0; i < kRows; ++i) {
        hn::Vec<SumsTag> whole[kSumsVectors];
        dots.total(i, tile.starts + index * kInterleave + i, whole);
        add_block<kHasMinimum>(whole, block, index, tile.scales[i], tile.scaled_sums[i],
                               sums.begin(i));
        sums.end(i);
      }
    }
    // Or the compiler moves the sums to registers and spills those of the inner loop.
    if constexpr (TileSums<kRows>::kInMemory) std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  sums.finish();
}

using Int8TileFunction = void (*)(int64_t, std::byte*, const uint8_t*, Ahead, float*);

// Expanded tiles of fewer rows are multiplied as if they had the next multiple of this.
inline constexpr int kExpandedStep = kInt8TileRows / 3;

// Entry i takes (i + 1) * kStep rows.
template <class Dot, int kParts, bool kHasMinimum, class Block, int kStep, int... kIndex>
constexpr std::array<Int8TileFunction, sizeof...(kIndex)> int8_tile_functions(
    std::integer_sequence<int, kIndex...>) {
  return {multiply_int8_tile<Dot, (kIndex + 1) * kStep, kParts, kHasMinimum, Block>...};
}

template <class Dot>
constexpr int expanded_block_bytes() {
  return ExpandedBlock<Dot, true>::kBytes;
}

// An expanded panel, then a tile's sums.
template <class Dot>
size_t int8_scratch_bytes(int64_t columns) {
  return static_cast<size_t>(columns / kQuantBlock * expanded_block_bytes<Dot>()) +
         kInt8TileRows * kPanelWidth * sizeof(float);
}

template <class Packed, class Expanded>
void expand_panel(const uint8_t* from, int64_t blocks, uint8_t* to) {
  Packed block(from);
  for (int64_t b = 0; b < blocks; ++b, block.advance(), to += Expanded::kBytes)
    Expanded::write(block, to);
}

template <class Dot, int kParts, bool kHasMinimum, class Packed>
void multiply_int8_panels(const LinearTask& task) {
  using Expanded = ExpandedBlock<Dot, kHasMinimum>;
  static constexpr auto kPacked = int8_tile_functions<Dot, kParts, kHasMinimum, Packed, 1>(
      std::make_integer_sequence<int, kMaxPackedRows>());
  static constexpr auto kExpanded =
      int8_tile_functions<Dot, kParts, kHasMinimum, Expanded, kExpandedStep>(
          std::make_integer_sequence<int, kInt8TileRows / kExpandedStep>());
  const Segment& weights = *task.weights;
  const int64_t blocks = weights.columns / kQuantBlock;
  const size_t tile_bytes =
      Int8Tile<kInt8TileRows, typename Dot::Activation, kParts, scales_of_block(Dot::kKind)>::bytes(
          weights.columns);
  const bool is_packed = task.num_rows <= kMaxPackedInput;
  const int64_t most_rows = int8_tile_rows(task.num_rows);
  auto* expanded = reinterpret_cast<uint8_t*>(task.scratch);
  auto* sums = reinterpret_cast<float*>(expanded + blocks * expanded_block_bytes<Dot>());
  for (int64_t panel = task.panel_begin; panel < task.panel_end; ++panel) {
    const auto* packed = reinterpret_cast<const uint8_t*>(
        weights.panels + static_cast<size_t>(panel) * weights.panel_bytes);
    if (!is_packed) expand_panel<Packed, Expanded>(packed, blocks, expanded);
    // The first tile fetches the weights that come next.
    Ahead ahead{packed + (is_packed ? kAheadBytes : static_cast<int64_t>(weights.panel_bytes)),
                Packed::kBytes};
    for (int64_t t = task.tile_begin; t < task.tile_end; ++t, ahead.bytes = 0) {
      const int64_t row = t * most_rows;
      const int64_t rows = std::min(most_rows, task.num_rows - row);
      auto* tile = const_cast<std::byte*>(task.tiles) + static_cast<size_t>(t) * tile_bytes;
      const auto last = static_cast<size_t>(rows - 1);
      if (is_packed) {
        kPacked[last](weights.columns, tile, packed, ahead, sums);
      } else {
        kExpanded[last / kExpandedStep](weights.columns, tile, expanded, ahead, sums);
      }
      store_tile(task, row, panel, rows, sums);
    }
  }
}

template <class Dot, int kParts, bool kHasMinimum>
void multiply_int8_blocks(const LinearTask& task) {
  using Half = PackedBlock<Dot, hwy::float16_t, kHasMinimum>;
  using Float = PackedBlock<Dot, float, kHasMinimum>;
  task.weights->format.scales == ScaleKind::kF16
      ? multiply_int8_panels<Dot, kParts, kHasMinimum, Half>(task)
      : multiply_int8_panels<Dot, kParts, kHasMinimum, Float>(task);
}

template <class Dot, int kParts>
void multiply_int8_parts(const LinearTask& task) {
  const PanelFormat& format = task.weights->format;
  if constexpr (Dot::kKind == PanelKind::kU6) {
    multiply_int8_panels<Dot, kParts, false, SuperBlock<Dot, PanelKind::kU6>>(task);
  } else if (format.scales == ScaleKind::kCodes) {
    constexpr PanelKind kKind = Dot::kKind == PanelKind::kU4 ? PanelKind::kU4 : PanelKind::kU5;
    multiply_int8_panels<Dot, kParts, true, SuperBlock<Dot, kKind>>(task);
  } else {
    format.has_minimum ? multiply_int8_blocks<Dot, kParts, true>(task)
                       : multiply_int8_blocks<Dot, kParts, false>(task);
  }
}

template <class Dot>
void multiply_int8(const LinearTask& task) {
  task.weights->input_parts == 2 ? multiply_int8_parts<Dot, 2>(task)
                                 : multiply_int8_parts<Dot, 1>(task);
}

}  // namespace droidspeak::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
