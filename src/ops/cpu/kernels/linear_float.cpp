// Products with f32, f16 and bf16 weights in f32 arithmetic. Every output element is one chain of
// fused multiply-adds in the order of the columns.
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

size_t tile_bytes(int64_t columns, int) {
  return static_cast<size_t>(columns) * kTileRows * sizeof(float);
}

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
template <int kRows, int kInterleave, class T>
void multiply_tile(int64_t depth, const float* a, const T* b, float* sums) {
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
    for (int j = 0; j < kVectors; ++j) w[j] = load_as_float(d, b + k * kPanelWidth + j * kLanes);
    HWY_UNROLL(12)
    for (int i = 0; i < kRows; ++i) {
      const V x = hn::Set(d, a[k * kInterleave + i]);
      HWY_UNROLL(4)
      for (int j = 0; j < kVectors; ++j) acc[i][j] = hn::MulAdd(x, w[j], acc[i][j]);
    }
  }
  HWY_UNROLL(12)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(4)
    for (int j = 0; j < kVectors; ++j)
      hn::StoreU(acc[i][j], d, sums + i * kPanelWidth + j * kLanes);
  }
}

template <class T>
using TileFunction = void (*)(int64_t, const float*, const T*, float*);

enum class Input { kFewRows, kTiles };

// Entry i takes i + 1 rows.
template <Input kInput, class T, int... kRows>
constexpr std::array<TileFunction<T>, kTileRows> tile_functions(
    std::integer_sequence<int, kRows...>) {
  return {multiply_tile < kRows + 1, kInput == Input::kFewRows ? kRows + 1 : kTileRows, T > ...};
}

template <Input kInput, class T>
constexpr auto kTileFunctions =
    tile_functions<kInput, T>(std::make_integer_sequence<int, kTileRows>());

struct Pass {
  int64_t begin;  // columns
  int64_t end;
};

template <Input kInput, class T>
void multiply_pass(
    const LinearTask& task, int64_t panel, Pass pass, const T* weights, float* sums) {
  const int64_t columns = task.weights->columns;
  const int64_t most_rows = tile_rows(task.num_rows);
  for (int64_t t = task.tile_begin; t < task.tile_end; ++t, sums += kTileRows * kPanelWidth) {
    const int64_t row = t * most_rows;
    const int64_t rows = std::min(most_rows, task.num_rows - row);
    const int64_t interleave = kInput == Input::kFewRows ? rows : kTileRows;
    const auto* a = reinterpret_cast<const float*>(task.tiles) + t * columns * kTileRows +
                    pass.begin * interleave;
    if (pass.begin == 0) std::fill_n(sums, rows * kPanelWidth, 0.0f);
    kTileFunctions<kInput, T>[static_cast<size_t>(rows - 1)](pass.end - pass.begin, a, weights,
                                                             sums);
    if (pass.end == columns) store_tile(task, row, panel, rows, sums);
  }
}

template <class T>
void multiply_panels(const LinearTask& task) {
  const int64_t columns = task.weights->columns;
  auto* expanded = reinterpret_cast<float*>(task.scratch);
  float* sums = expanded + kDepth * kPanelWidth;
  for (int64_t panel = task.panel_begin; panel < task.panel_end; ++panel) {
    const auto* weights = reinterpret_cast<const T*>(
        task.weights->panels + static_cast<size_t>(panel) * task.weights->panel_bytes);
    if (task.num_rows <= kFewRows) {
      multiply_pass<Input::kFewRows>(task, panel, {0, columns}, weights, sums);
      continue;
    }
    for (int64_t begin = 0; begin < columns; begin += kDepth) {
      const Pass pass{begin, std::min(begin + kDepth, columns)};
      const T* part = weights + begin * kPanelWidth;
      if constexpr (std::is_same_v<T, float>) {
        multiply_pass<Input::kTiles>(task, panel, pass, part, sums);
      } else {
        convert_row(part, (pass.end - pass.begin) * kPanelWidth, 1.0f, expanded);
        multiply_pass<Input::kTiles>(task, panel, pass, expanded, sums);
      }
    }
  }
}

void multiply(const LinearTask& task) {
  switch (task.weights->format.kind) {
    case PanelKind::kF16:
      return multiply_panels<hwy::float16_t>(task);
    case PanelKind::kBF16:
      return multiply_panels<hwy::bfloat16_t>(task);
    default:
      return multiply_panels<float>(task);
  }
}

void bind(Kernels& kernels) {
  kernels.linear_float = {.tile_rows = tile_rows,
                          .tile_bytes = tile_bytes,
                          .scratch_bytes = scratch_bytes,
                          .pack_tile = pack_tile,
                          .multiply = multiply};
}

}  // namespace
}  // namespace droidspeak::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace droidspeak::cpu {

HWY_EXPORT(bind);

void bind_linear_float(InstructionSet set, Kernels& kernels) {
  pick(HWY_DISPATCH_TABLE(bind), set)(kernels);
}

}  // namespace droidspeak::cpu
#endif
