// Products with f32, f16 and bf16 weights. Every output element is one chain of fused multiply-adds
// in the order of the columns; where the processor multiplies pairs of bf16 and rounded input will
// do, one chain of those.
#include <array>
#include <utility>

#include "ops/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/kernels/linear_float.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/kernels/dispatch.h"
#include "ops/cpu/kernels/store_tile-inl.h"
#include "ops/cpu/kernels/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE {
namespace {

using D = hn::CappedTag<float, kPanelWidth>;
using V = hn::Vec<D>;

constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
constexpr int kVectors = kPanelWidth / kLanes;
// As many rows as the registers hold accumulators for.
constexpr int kTileRows = kLanes == 16 ? 12 : 6;
// Columns per pass: a panel of so many columns as f32 stays in the first-level cache.
constexpr int64_t kDepth = 384;
// How far ahead the weights for few rows are fetched.
constexpr int64_t kPrefetchElements = 1024;

size_t tile_bytes(int64_t columns, const InputForm&) {
  return static_cast<size_t>(columns) * kTileRows * sizeof(float);
}

// A column of weights at a time, of any float type.
template <class T>
struct ColumnStep {
  using Word = T;

  static HWY_INLINE V load(const T* from) { return load_as_float(D(), from); }

  static HWY_INLINE void add(V& sum, V weights, const float* value) {
    sum = hn::MulAdd(hn::Set(D(), *value), weights, sum);
  }
};

// Part of an expanded panel, then sums of a task's tiles between passes.
size_t scratch_bytes(int64_t) {
  return static_cast<size_t>(kDepth + kMaxTaskRows + kTileRows) * kPanelWidth * sizeof(float);
}

int64_t tile_rows(int64_t total_rows) {
  return total_rows <= kFewRows ? even_part(total_rows, kTileRows) : kTileRows;
}

// [columns][interleave]; rows that are missing at the end repeat the last one. Few rows are
// interleaved by as many as the tile has.
void pack_tile(const InputRows& rows, std::byte* tile) {
  const int64_t interleave = rows.total_rows <= kFewRows ? rows.num_rows : kTileRows;
  const int64_t wide = rows.columns / 4 * 4;
  auto row = [&](int64_t i) { return rows.data + std::min(i, rows.num_rows - 1) * rows.stride; };
  int64_t i = 0;
  for (; i + 4 <= interleave; i += 4) {
    const float* from[] = {row(i), row(i + 1), row(i + 2), row(i + 3)};
    float* to = reinterpret_cast<float*>(tile) + i;
    for (int64_t k = 0; k < wide; k += 4, to += 4 * interleave) {
      transpose_4x4(from, nullptr, to, interleave);
      for (const float*& f : from) f += 4;
    }
    for (int64_t k = wide; k < rows.columns; ++k, to += interleave) {
      for (int j = 0; j < 4; ++j) to[j] = *from[j]++;
    }
  }
  for (; i < interleave; ++i) {
    float* to = reinterpret_cast<float*>(tile) + i;
    for (int64_t k = 0; k < rows.columns; ++k) to[k * interleave] = row(i)[k];
  }
}

// sums: [kRows][kPanelWidth], continued from what they hold.
template <class Step, int kRows, int kInterleave>
void multiply_tile(int64_t depth, const float* a, const typename Step::Word* b, float* sums) {
  const D d;
  V acc[kRows][kVectors];
  HWY_UNROLL(12)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(4)
    for (int j = 0; j < kVectors; ++j)
      acc[i][j] = hn::LoadU(d, sums + i * kPanelWidth + j * kLanes);
  }
  HWY_UNROLL(4)
  for (int64_t k = 0; k < depth; ++k) {
    if constexpr (kInterleave == kRows) hwy::Prefetch(b + k * kPanelWidth + kPrefetchElements);
    V w[kVectors];
    HWY_UNROLL(4)
    for (int j = 0; j < kVectors; ++j) w[j] = Step::load(b + k * kPanelWidth + j * kLanes);
    HWY_UNROLL(12)
    for (int i = 0; i < kRows; ++i) {
      HWY_UNROLL(4)
      for (int j = 0; j < kVectors; ++j) Step::add(acc[i][j], w[j], a + k * kInterleave + i);
    }
  }
  HWY_UNROLL(12)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(4)
    for (int j = 0; j < kVectors; ++j)
      hn::StoreU(acc[i][j], d, sums + i * kPanelWidth + j * kLanes);
  }
}

template <class Step>
using TileFunction = void (*)(int64_t, const float*, const typename Step::Word*, float*);

enum class Input { kFewRows, kTiles };

// Entry i takes i + 1 rows.
template <Input kInput, class Step, int... kRows>
constexpr std::array<TileFunction<Step>, kTileRows> tile_functions(
    std::integer_sequence<int, kRows...>) {
  return {multiply_tile < Step, kRows + 1, kInput == Input::kFewRows ? kRows + 1 : kTileRows > ...};
}

template <Input kInput, class Step>
constexpr auto kTileFunctions =
    tile_functions<kInput, Step>(std::make_integer_sequence<int, kTileRows>());

// Words of rows and panels: columns, or pairs of them.
struct Pass {
  int64_t begin;
  int64_t end;
  int64_t all;
};

template <Input kInput, class Step>
void multiply_pass(const LinearTask& task,
                   int64_t panel,
                   Pass pass,
                   const typename Step::Word* weights,
                   float* sums) {
  const int64_t most_rows = tile_rows(task.num_rows);
  for (int64_t t = task.tile_begin; t < task.tile_end; ++t, sums += kTileRows * kPanelWidth) {
    const int64_t row = t * most_rows;
    const int64_t rows = std::min(most_rows, task.num_rows - row);
    const int64_t interleave = kInput == Input::kFewRows ? rows : kTileRows;
    const auto* a = reinterpret_cast<const float*>(task.tiles) + t * pass.all * kTileRows +
                    pass.begin * interleave;
    if (pass.begin == 0) std::fill_n(sums, rows * kPanelWidth, 0.0f);
    kTileFunctions<kInput, Step>[static_cast<size_t>(rows - 1)](pass.end - pass.begin, a, weights,
                                                                sums);
    if (pass.end == pass.all) store_tile(task, row, panel, rows, sums);
  }
}

template <class T>
void expand(const T* part, int64_t columns, float* to) {
  convert_row(part, columns * kPanelWidth, 1.0f, to);
}

// Pairs of columns of bf16 lie together.
struct Bf16Pair {
  uint32_t bits;
};

void expand(const Bf16Pair* part, int64_t columns, float* to) {
  const D d;
  const hn::RebindToUnsigned<D> words;
  const auto* from = reinterpret_cast<const uint32_t*>(part);
  for (int64_t k = 0; k < columns; k += 2, from += kPanelWidth, to += 2 * kPanelWidth) {
    hwy::Prefetch(from + kPrefetchElements / 2);
    for (int j = 0; j < kPanelWidth; j += kLanes) {
      const auto pairs = hn::LoadU(words, from + j);
      hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(pairs)), d, to + j);
      if (k + 1 == columns) continue;
      const auto upper = hn::And(pairs, hn::Set(words, 0xffff0000u));
      hn::StoreU(hn::BitCast(d, upper), d, to + kPanelWidth + j);
    }
  }
}

template <Input kInput, class T>
void multiply_panels(const LinearTask& task) {
  constexpr bool kIsPaired = std::is_same_v<T, Bf16Pair>;
  constexpr bool kIsExpanded = kIsPaired || (kInput == Input::kTiles && !std::is_same_v<T, float>);
  const int64_t columns = task.weights->columns;
  const int64_t depth = kInput == Input::kFewRows && !kIsExpanded ? columns : kDepth;
  auto* expanded = reinterpret_cast<float*>(task.scratch);
  float* sums = expanded + kDepth * kPanelWidth;
  for (int64_t panel = task.panel_begin; panel < task.panel_end; ++panel) {
    const auto* weights = reinterpret_cast<const T*>(
        task.weights->panels + static_cast<size_t>(panel) * task.weights->panel_bytes);
    for (int64_t begin = 0; begin < columns; begin += depth) {
      const Pass pass{begin, std::min(begin + depth, columns), columns};
      const T* part = weights + begin * kPanelWidth / (kIsPaired ? 2 : 1);
      if constexpr (kIsExpanded) {
        expand(part, pass.end - pass.begin, expanded);
        multiply_pass<kInput, ColumnStep<float>>(task, panel, pass, expanded, sums);
      } else {
        multiply_pass<kInput, ColumnStep<T>>(task, panel, pass, part, sums);
      }
    }
  }
}

template <class T>
void multiply_panels(const LinearTask& task) {
  task.num_rows <= kFewRows ? multiply_panels<Input::kFewRows, T>(task)
                            : multiply_panels<Input::kTiles, T>(task);
}

void multiply(const LinearTask& task) {
  switch (task.weights->format.kind) {
    case PanelKind::kF16:
      return multiply_panels<hwy::float16_t>(task);
    case PanelKind::kBF16:
      return multiply_panels<Bf16Pair>(task);
    default:
      return multiply_panels<float>(task);
  }
}

#if HWY_TARGET == HWY_AVX3

// A pair of columns of bf16 at a time. In assembler: the target of this namespace does not name
// BF16.
struct PairStep {
  using Word = uint32_t;

  static HWY_INLINE V load(const uint32_t* from) {
    return V{_mm512_castsi512_ps(_mm512_loadu_si512(from))};
  }

  static HWY_INLINE void add(V& sum, V weights, const float* pair) {
    asm("vdpbf16ps %[pair]%{1to16%}, %[weights], %[sum]"
        : [sum] "+v"(sum.raw)
        : [weights] "v"(weights.raw), [pair] "m"(*reinterpret_cast<const int32_t(*)[1]>(pair)));
  }
};

size_t pair_tile_bytes(int64_t columns, const InputForm&) {
  return static_cast<size_t>((columns + 1) / 2) * kTileRows * sizeof(uint32_t);
}

// [pairs of columns][interleave] words of two bf16; a last column without a partner gets 0.
void pack_pairs(const InputRows& rows, std::byte* tile) {
  const int64_t interleave = rows.total_rows <= kFewRows ? rows.num_rows : kTileRows;
  for (int64_t i = 0; i < interleave; ++i) {
    const float* row = rows.data + std::min(i, rows.num_rows - 1) * rows.stride;
    auto* to = reinterpret_cast<uint32_t*>(tile) + i;
    for (int64_t k = 0; k < rows.columns; k += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, rows.columns - k);
      const V values = count == kLanes ? hn::LoadU(D(), row + k) : load_first(D(), row + k, count);
      __m256i halves;
      asm("vcvtneps2bf16 %1, %0" : "=v"(halves) : "v"(values.raw));
      alignas(32) uint32_t words[kLanes / 2];
      _mm256_store_si256(reinterpret_cast<__m256i*>(words), halves);
      for (int64_t w = 0; w < (count + 1) / 2; ++w, to += interleave) *to = words[w];
    }
  }
}

void multiply_pairs(const LinearTask& task) {
  const int64_t words = (task.weights->columns + 1) / 2;
  auto* sums = reinterpret_cast<float*>(task.scratch);
  for (int64_t panel = task.panel_begin; panel < task.panel_end; ++panel) {
    const auto* weights = reinterpret_cast<const uint32_t*>(
        task.weights->panels + static_cast<size_t>(panel) * task.weights->panel_bytes);
    if (task.num_rows <= kFewRows) {
      multiply_pass<Input::kFewRows, PairStep>(task, panel, {0, words, words}, weights, sums);
      continue;
    }
    for (int64_t begin = 0; begin < words; begin += kDepth) {
      const Pass pass{begin, std::min(begin + kDepth, words), words};
      multiply_pass<Input::kTiles, PairStep>(task, panel, pass, weights + begin * kPanelWidth,
                                             sums);
    }
  }
}

#endif

void bind(InstructionSet set, Kernels& kernels) {
  kernels.linear_float = {.tile_rows = tile_rows,
                          .tile_bytes = tile_bytes,
                          .scratch_bytes = scratch_bytes,
                          .pack_tile = pack_tile,
                          .multiply = multiply};
  kernels.linear_bf16 = kernels.linear_float;
#if HWY_TARGET == HWY_AVX3
  if (set >= InstructionSet::kAvx512Bf16) {
    kernels.linear_bf16.tile_bytes = pair_tile_bytes;
    kernels.linear_bf16.pack_tile = pack_pairs;
    kernels.linear_bf16.multiply = multiply_pairs;
  }
#endif
  (void)set;
}

}  // namespace
}  // namespace droidspeak::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace droidspeak::cpu {

HWY_EXPORT(bind);

void bind_linear_float(InstructionSet set, Kernels& kernels) {
  pick(HWY_DISPATCH_TABLE(bind), set)(set, kernels);
}

}  // namespace droidspeak::cpu
#endif
