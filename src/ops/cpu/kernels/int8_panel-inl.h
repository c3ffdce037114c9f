// Tiles of int8 rows times weight panels, over any of the inner steps of int8_dot-inl.h.
#if defined(DROIDSPEAK_INT8_PANEL_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef DROIDSPEAK_INT8_PANEL_TOGGLE
#undef DROIDSPEAK_INT8_PANEL_TOGGLE
#else
#define DROIDSPEAK_INT8_PANEL_TOGGLE
#endif

#include <algorithm>
#include <array>
#include <atomic>
#include <type_traits>
#include <utility>

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "ops/cpu/kernels.h"
#include "ops/cpu/kernels/int8_dot-inl.h"
#include "ops/cpu/kernels/int8_tile.h"
#include "ops/cpu/kernels/store_tile-inl.h"
#include "ops/cpu/kernels/super_panel-inl.h"
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

// How a kernel reads a panel: quants packed as in the segment, or expanded to what the inner step
// takes. S is the type of the scales.
template <class Dot, class S, bool kHasMinimum>
struct PackedBlock {
  static constexpr int kColumns = kQuantBlock;
  static constexpr int kQuantBytes = Dot::kKind == PanelKind::kU4 ? 256 : 512;
  static constexpr int kBytes = kQuantBytes + (kHasMinimum ? 2 : 1) * kPanelWidth * sizeof(S);
  using Scale = S;

  // Quants of four columns, the index-th of the block's eight.
  static HWY_INLINE typename Dot::Quad load(const uint8_t* block, int index) {
    if constexpr (Dot::kKind == PanelKind::kU4) {
      const uint8_t* from = block + index / 2 * 64;
      return index % 2 == 0 ? Dot::Quad::low_nibbles(from) : Dot::Quad::high_nibbles(from);
    } else {
      return Dot::Quad::from_u8(block + index * 64);
    }
  }
};

template <class Dot, bool kHasMinimum>
struct ExpandedBlock {
  static constexpr int kColumns = kQuantBlock;
  static constexpr int kQuantBytes = 8 * Dot::Quad::kBytes;
  static constexpr int kBytes = kQuantBytes + (kHasMinimum ? 2 : 1) * kPanelWidth * sizeof(float);
  using Scale = float;

  static HWY_INLINE typename Dot::Quad load(const uint8_t* block, int index) {
    return Dot::Quad::load(block + index * Dot::Quad::kBytes);
  }
};

// What a super-block of small blocks is unpacked to.
template <class Dot, bool kHasMinimum>
struct SmallBlock {
  static constexpr int kColumns = 16;
  static constexpr int kQuantBytes = kColumns * kPanelWidth;
  static constexpr int kBytes = kByteBlockBytes<kColumns, kHasMinimum>;
  using Scale = float;

  static HWY_INLINE typename Dot::Quad load(const uint8_t* block, int index) {
    return Dot::Quad::from_u8(block + index * 64);
  }
};

// The blocks that kernels read a super-block as, all of bytes and f32; of several names for the
// same layout those that other formats have as well, so that less is compiled.
template <class Dot, PanelKind kKind>
struct SuperBlocks {
  static constexpr SuperTraits kTraits = super_traits(kKind);
  static constexpr bool kIsSmall = kTraits.block == 16;
  static constexpr bool kExpandsToBytes = Dot::Quad::kBytes == 64;
  using Small = SmallBlock<Dot, kTraits.has_minimum>;
  using Expanded = ExpandedBlock<Dot, kTraits.has_minimum>;
  using Packed = PackedBlock<Dot, float, kTraits.has_minimum>;
  using FewRows =
      std::conditional_t<kIsSmall,
                         Small,
                         std::conditional_t<Dot::kKind == PanelKind::kU4, Expanded, Packed>>;
  using Tiles =
      std::conditional_t<kIsSmall, Small, std::conditional_t<kExpandsToBytes, Expanded, Packed>>;
  static_assert(FewRows::kBytes == kByteBlockBytes<kTraits.block, kTraits.has_minimum> &&
                Tiles::kBytes == FewRows::kBytes);
};

// Adds a block's products to the 16 sums of one row.
template <class Block, bool kHasMinimum>
HWY_INLINE void add_block(const hn::Vec<SumsTag>* dots,
                          const uint8_t* block,
                          float scale,
                          float scaled_sum,
                          hn::Vec<FloatTag>* sums) {
  const FloatTag d;
  const auto* scales = reinterpret_cast<const typename Block::Scale*>(block + Block::kQuantBytes);
  HWY_UNROLL(4)
  for (int j = 0; j < kSumsVectors; ++j) {
    const auto factor = hn::Mul(hn::Set(d, scale), load_as_float(d, scales + j * kSumsLanes));
    sums[j] = hn::MulAdd(hn::ConvertTo(d, dots[j]), factor, sums[j]);
    if constexpr (kHasMinimum) {
      const auto minimum = load_as_float(d, scales + kPanelWidth + j * kSumsLanes);
      sums[j] = hn::MulAdd(hn::Set(d, scaled_sum), minimum, sums[j]);
    }
  }
}

// Sums of a tile's rows over the blocks of a panel, in registers where there are enough of them.
template <int kRows>
class TileSums {
 public:
  // Half of the registers are for the sums inside a block.
  static constexpr bool kInMemory = kRows * kSumsVectors > (HWY_MAX_BYTES == 64 ? 16 : 4);

  // is_first: the sums begin at 0, not at what is in `out`.
  TileSums(float* out, bool is_first) : out_(out) {
    HWY_UNROLL(12)
    for (int i = 0; i < kRows; ++i) {
      if (is_first) {
        for (int j = 0; j < kSumsVectors; ++j) sums_[i][j] = hn::Zero(FloatTag());
        if (kInMemory) store(i);
      } else if (!kInMemory) {
        for (int j = 0; j < kSumsVectors; ++j) sums_[i][j] = hn::LoadU(FloatTag(), at(i, j));
      }
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

// The products of a block in integers, row by row.
template <class Dot, int kRows, int kParts, bool kHasStart>
class BlockDots {
 public:
  // An implicit one would not be compiled for the target (NEON).
  HWY_INLINE BlockDots() {}

  template <class Block, int kInterleave>
  HWY_INLINE void multiply(
      const uint8_t* block,
      const Int8Tile<kInterleave, typename Dot::Activation, kParts, Block::kColumns>& tile) {
    HWY_UNROLL(12)
    for (int i = 0; i < kRows; ++i) {
      sums_[i] = Dot::template begin<kStartsAtOnce>(tile.starts + i);
    }
    add_part<Block, kInterleave>(block, tile.quants);
    if constexpr (kParts == 2) {
      HWY_UNROLL(12)
      for (int i = 0; i < kRows; ++i) {
        Dot::template total<false>(sums_[i], nullptr, first_[i]);
        to_second_part<kHasStart>(tile.starts + i, first_[i]);
        if constexpr (Dot::kIsWide) {
          sums_[i] = Dot::resume(first_[i]);
        } else {
          sums_[i] = Dot::template begin<false>(nullptr);
        }
      }
      add_part<Block, kInterleave>(block, tile.quants + Block::kColumns * kInterleave);
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

  template <class Block, int kInterleave>
  HWY_INLINE void add_part(const uint8_t* block, const typename Dot::Activation* quants) {
    HWY_UNROLL(8)
    for (int index = 0; index < Block::kColumns / 4; ++index) {
      const typename Dot::Quad quad = Block::load(block, index);
      const auto* a = quants + index * 4 * kInterleave;
      HWY_UNROLL(12)
      for (int i = 0; i < kRows; ++i) Dot::add(sums_[i], quad, a + 4 * i);
    }
  }

  typename Dot::Sums sums_[kRows];
  hn::Vec<SumsTag> first_[kRows][kSumsVectors];
};

// Columns [begin, begin + count) of a tile.
struct TileColumns {
  std::byte* tile;
  int64_t columns;
  int64_t begin;
  int64_t count;
};

// out: [kRows][kPanelWidth].
template <class Dot, int kRows, int kInterleave, int kParts, bool kHasMinimum, class Block>
void multiply_int8_tile(const TileColumns& in, const uint8_t* block, Ahead ahead, float* out) {
  Int8Tile<kInterleave, typename Dot::Activation, kParts, Block::kColumns> tile(in.tile,
                                                                                in.columns);
  tile.advance(in.begin / Block::kColumns);
  const int64_t blocks = in.count / Block::kColumns;
  TileSums<kRows> sums(out, in.begin == 0);
  for (int64_t b = 0; b < blocks; ++b, block += Block::kBytes, tile.advance()) {
    for (int64_t i = 0; i < ahead.bytes; i += 64) hwy::Prefetch(ahead.from + i);
    ahead.from += ahead.bytes;
    BlockDots<Dot, kRows, kParts, !kHasMinimum> dots;
    dots.template multiply<Block, kInterleave>(block, tile);
    HWY_UNROLL(12)
    for (int i = 0; i < kRows; ++i) {
      hn::Vec<SumsTag> whole[kSumsVectors];
      dots.total(i, tile.starts + i, whole);
      add_block<Block, kHasMinimum>(whole, block, tile.scales[i], tile.scaled_sums[i],
                                    sums.begin(i));
      sums.end(i);
    }
    // Or the compiler moves the sums to registers and spills those of the inner loop.
    if constexpr (TileSums<kRows>::kInMemory) std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  sums.finish();
}

using Int8TileFunction = void (*)(const TileColumns&, const uint8_t*, Ahead, float*);

// Tiles of fewer rows are multiplied as if they had the next multiple of this, where rows are many.
inline constexpr int kExpandedStep = kInt8TileRows / 3;

enum class Int8Input { kFewRows, kTiles };

// Entry i takes i + 1 rows, or (i + 1) * kExpandedStep.
template <class Dot, int kParts, bool kHasMinimum, class Block, Int8Input kInput, int... kIndex>
constexpr std::array<Int8TileFunction, sizeof...(kIndex)> int8_tile_functions(
    std::integer_sequence<int, kIndex...>) {
  if constexpr (kInput == Int8Input::kFewRows) {
    return {multiply_int8_tile<Dot, kIndex + 1, kIndex + 1, kParts, kHasMinimum, Block>...};
  } else {
    return {multiply_int8_tile<Dot, (kIndex + 1) * kExpandedStep, kInt8TileRows, kParts,
                               kHasMinimum, Block>...};
  }
}

template <class Dot, int kParts, bool kHasMinimum, class Block>
constexpr auto kFewRowsFunctions =
    int8_tile_functions<Dot, kParts, kHasMinimum, Block, Int8Input::kFewRows>(
        std::make_integer_sequence<int, kMaxPackedRows>());
template <class Dot, int kParts, bool kHasMinimum, class Block>
constexpr auto kTilesFunctions =
    int8_tile_functions<Dot, kParts, kHasMinimum, Block, Int8Input::kTiles>(
        std::make_integer_sequence<int, kInt8TileRows / kExpandedStep>());

template <class Dot>
constexpr int expanded_block_bytes() {
  return ExpandedBlock<Dot, true>::kBytes;
}

// The sums of a tile, or of all tiles of few rows, then an expanded panel.
inline constexpr int kSumsFloats = 2 * kInt8TileRows * kPanelWidth;
static_assert(2 * kInt8TileRows >= kMaxPackedInput);

template <class Dot>
size_t int8_scratch_bytes(int64_t columns) {
  constexpr int kOfSuperBlocks = 2 * kByteBlockBytes<16, true>;
  return static_cast<size_t>(columns / kQuantBlock *
                             std::max(kOfSuperBlocks, expanded_block_bytes<Dot>())) +
         kSumsFloats * sizeof(float);
}

template <class Dot, class S, bool kHasMinimum>
void expand_panel(const uint8_t* from, int64_t blocks, uint8_t* to) {
  using Packed = PackedBlock<Dot, S, kHasMinimum>;
  using Expanded = ExpandedBlock<Dot, kHasMinimum>;
  for (int64_t b = 0; b < blocks; ++b, from += Packed::kBytes, to += Expanded::kBytes) {
    HWY_UNROLL(8)
    for (int index = 0; index < kQuantBlock / 4; ++index) {
      Packed::load(from, index).store(to + index * Dot::Quad::kBytes);
    }
    convert_row(reinterpret_cast<const S*>(from + Packed::kQuantBytes),
                (kHasMinimum ? 2 : 1) * kPanelWidth, 1.0f,
                reinterpret_cast<float*>(to + Expanded::kQuantBytes));
  }
}

// The tiles of a task.
template <class Dot, int kParts, int kColumns>
struct TaskTiles {
  const LinearTask& task;
  const int64_t most_rows = int8_tile_rows(task.num_rows);

  bool has_few_rows() const { return task.num_rows <= kMaxPackedInput; }

  int64_t first_row(int64_t t) const { return t * most_rows; }

  int64_t rows_of(int64_t t) const { return std::min(most_rows, task.num_rows - first_row(t)); }

  TileColumns columns_of(int64_t t, int64_t begin, int64_t count) const {
    using Tile = Int8Tile<kInt8TileRows, typename Dot::Activation, kParts, kColumns>;
    const int64_t columns = task.weights->columns;
    return {const_cast<std::byte*>(task.tiles) + static_cast<size_t>(t) * Tile::bytes(columns),
            columns, begin, count};
  }

  template <bool kHasMinimum, class Few, class Many>
  void multiply(
      int64_t t, const TileColumns& in, const uint8_t* block, Ahead ahead, float* sums) const {
    const auto last = static_cast<size_t>(rows_of(t) - 1);
    if (has_few_rows()) {
      kFewRowsFunctions<Dot, kParts, kHasMinimum, Few>[last](in, block, ahead, sums);
    } else {
      kTilesFunctions<Dot, kParts, kHasMinimum, Many>[last / kExpandedStep](in, block, ahead, sums);
    }
  }
};

template <class Dot, class S, int kParts, bool kHasMinimum>
void multiply_int8_panels(const LinearTask& task) {
  using Packed = PackedBlock<Dot, S, kHasMinimum>;
  using Expanded = ExpandedBlock<Dot, kHasMinimum>;
  const Segment& weights = *task.weights;
  const TaskTiles<Dot, kParts, kQuantBlock> tiles{task};
  const bool is_packed = tiles.has_few_rows();
  auto* sums = reinterpret_cast<float*>(task.scratch);
  auto* expanded = reinterpret_cast<uint8_t*>(sums + kSumsFloats);
  for (int64_t panel = task.panel_begin; panel < task.panel_end; ++panel) {
    const auto* packed = reinterpret_cast<const uint8_t*>(
        weights.panels + static_cast<size_t>(panel) * weights.panel_bytes);
    if (!is_packed)
      expand_panel<Dot, S, kHasMinimum>(packed, weights.columns / kQuantBlock, expanded);
    // The first tile fetches the weights that come next.
    Ahead ahead{packed + (is_packed ? kAheadBytes : static_cast<int64_t>(weights.panel_bytes)),
                Packed::kBytes};
    for (int64_t t = task.tile_begin; t < task.tile_end; ++t, ahead.bytes = 0) {
      tiles.template multiply<kHasMinimum, Packed, Expanded>(
          t, tiles.columns_of(t, 0, weights.columns), is_packed ? packed : expanded, ahead, sums);
      store_tile(task, tiles.first_row(t), panel, tiles.rows_of(t), sums);
    }
  }
}

// Few rows take a panel super-block by super-block, which stays in the first-level cache; many rows
// share a whole panel.
template <class Dot, PanelKind kKind, int kParts>
void multiply_super_panels(const LinearTask& task) {
  constexpr SuperTraits kTraits = super_traits(kKind);
  using FewRows = typename SuperBlocks<Dot, kKind>::FewRows;
  using Tiles = typename SuperBlocks<Dot, kKind>::Tiles;
  constexpr int kBlocks = kSuperBlock / kTraits.block;
  const Segment& weights = *task.weights;
  const TaskTiles<Dot, kParts, kTraits.block> tiles{task};
  const bool has_few_rows = tiles.has_few_rows();
  const int64_t step = has_few_rows ? kSuperBlock : weights.columns;
  auto* all_sums = reinterpret_cast<float*>(task.scratch);
  auto* bytes = reinterpret_cast<uint8_t*>(all_sums + kSumsFloats);
  for (int64_t panel = task.panel_begin; panel < task.panel_end; ++panel) {
    const auto* packed = reinterpret_cast<const uint8_t*>(
        weights.panels + static_cast<size_t>(panel) * weights.panel_bytes);
    for (int64_t begin = 0; begin < weights.columns; begin += step) {
      for (int64_t i = 0; i < step / kSuperBlock; ++i, packed += kTraits.bytes())
        unpack_super_block<kKind>(packed, bytes + i * kBlocks * Tiles::kBytes);
      Ahead ahead{packed + (has_few_rows ? kAheadBytes : 0), kTraits.bytes() / kBlocks};
      float* sums = all_sums;
      for (int64_t t = task.tile_begin; t < task.tile_end; ++t, ahead.bytes = 0) {
        tiles.template multiply<kTraits.has_minimum, FewRows, Tiles>(
            t, tiles.columns_of(t, begin, step), bytes, ahead, sums);
        if (begin + step == weights.columns)
          store_tile(task, tiles.first_row(t), panel, tiles.rows_of(t), sums);
        if (has_few_rows) sums += kMaxPackedRows * kPanelWidth;
      }
    }
  }
}

template <class Dot, int kParts>
void multiply_int8_parts(const LinearTask& task) {
  const PanelFormat& format = task.weights->format;
  if constexpr (Dot::kKind == PanelKind::kU4) {
    if (format.kind == PanelKind::kQ4K)
      return multiply_super_panels<Dot, PanelKind::kQ4K, kParts>(task);
  } else {
    if (format.kind == PanelKind::kQ2K)
      return multiply_super_panels<Dot, PanelKind::kQ2K, kParts>(task);
    if (format.kind == PanelKind::kQ3K)
      return multiply_super_panels<Dot, PanelKind::kQ3K, kParts>(task);
    if (format.kind == PanelKind::kQ5K)
      return multiply_super_panels<Dot, PanelKind::kQ5K, kParts>(task);
    if (format.kind == PanelKind::kQ6K)
      return multiply_super_panels<Dot, PanelKind::kQ6K, kParts>(task);
  }
  const bool is_f16 = format.scales == ScaleKind::kF16;
  if (format.has_minimum) {
    is_f16 ? multiply_int8_panels<Dot, hwy::float16_t, kParts, true>(task)
           : multiply_int8_panels<Dot, float, kParts, true>(task);
  } else {
    is_f16 ? multiply_int8_panels<Dot, hwy::float16_t, kParts, false>(task)
           : multiply_int8_panels<Dot, float, kParts, false>(task);
  }
}

template <class Dot>
void multiply_int8(const LinearTask& task) {
  task.weights->input.parts == 2 ? multiply_int8_parts<Dot, 2>(task)
                                 : multiply_int8_parts<Dot, 1>(task);
}

}  // namespace droidspeak::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
