// Products with f32, f16 and bf16 weights in f32 arithmetic. Every output element is one chain of
// fused multiply-adds in the order of the columns.
#include <array>
#include <utility>

#include "ops/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/kernels/linear_float.cpp"
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

size_t tile_bytes(int64_t columns) { return static_cast<size_t>(columns) * kTileRows * sizeof(float); }

// Part of an expanded panel, then sums of a task's tiles between passes.
size_t scratch_bytes(int64_t) {
  return static_cast<size_t>(kDepth + kMaxTaskRows + kTileRows) * kPanelWidth * sizeof(float);
}

// [columns][kTileRows]; missing rows are 0.
void pack_tile(const InputRows& rows, std::byte* tile) {
  auto* to = reinterpret_cast<float*>(tile);
  for (int64_t i = 0; i < kTileRows; ++i) {
    const float* from = rows.data + i * rows.stride;
    for (int64_t k = 0; k < rows.columns; ++k) {
      to[k * kTileRows + i] = i < rows.num_rows ? from[k] : 0.0f;
    }
  }
}

// sums: [kRows][kPanelWidth], continued from what they hold.
template <int kRows, class T>
void multiply_tile(int64_t depth, const float* a, const T* b, float* sums) {
  const D d;
  V acc[kRows][kVectors];
  HWY_UNROLL(12)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(4)
    for (int j = 0; j < kVectors; ++j) acc[i][j] = hn::LoadU(d, sums + i * kPanelWidth + j * kLanes);
  }
  HWY_UNROLL(4)
  for (int64_t k = 0; k < depth; ++k) {
    V w[kVectors];
    HWY_UNROLL(4)
    for (int j = 0; j < kVectors; ++j) w[j] = load_as_float(d, b + k * kPanelWidth + j * kLanes);
    HWY_UNROLL(12)
    for (int i = 0; i < kRows; ++i) {
      const V x = hn::Set(d, a[k * kTileRows + i]);
      HWY_UNROLL(4)
      for (int j = 0; j < kVectors; ++j) acc[i][j] = hn::MulAdd(x, w[j], acc[i][j]);
    }
  }
  HWY_UNROLL(12)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(4)
    for (int j = 0; j < kVectors; ++j) hn::StoreU(acc[i][j], d, sums + i * kPanelWidth + j * kLanes);
  }
}

template <class T>
using TileFunction = void (*)(int64_t, const float*, const T*, float*);

template <class T, int... kRows>
constexpr std::array<TileFunction<T>, kTileRows> tile_functions(std::integer_sequence<int, kRows...>) {
  return {multiply_tile<kRows + 1, T>...};
}

template <class T>
constexpr auto kTileFunctions = tile_functions<T>(std::make_integer_sequence<int, kTileRows>());

struct Pass {
  int64_t begin;  // columns
  int64_t end;
};

template <class T>
void multiply_pass(const LinearTask& task, int64_t panel, Pass pass, const T* weights, float* sums) {
  const int64_t columns = task.weights->columns;
  for (int64_t t = task.tile_begin; t < task.tile_end; ++t, sums += kTileRows * kPanelWidth) {
    const int64_t row = t * kTileRows;
    const int64_t rows = std::min<int64_t>(kTileRows, task.num_rows - row);
    const auto* a = reinterpret_cast<const float*>(task.tiles) + (t * columns + pass.begin) * kTileRows;
    if (pass.begin == 0) std::fill_n(sums, rows * kPanelWidth, 0.0f);
    kTileFunctions<T>[static_cast<size_t>(rows - 1)](pass.end - pass.begin, a, weights, sums);
    if (pass.end == columns) store_tile(task, row, panel, rows, sums);
  }
}

// Several tiles share the conversion of a panel; one tile converts as it goes.
template <class T>
void multiply_panels(const LinearTask& task) {
  const int64_t columns = task.weights->columns;
  auto* expanded = reinterpret_cast<float*>(task.scratch);
  float* sums = expanded + kDepth * kPanelWidth;
  const bool converts = !std::is_same_v<T, float> && task.tile_end - task.tile_begin > 1;
  for (int64_t panel = task.panel_begin; panel < task.panel_end; ++panel) {
    const auto* weights = reinterpret_cast<const T*>(
        task.weights->panels + static_cast<size_t>(panel) * task.weights->panel_bytes);
    for (int64_t begin = 0; begin < columns; begin += kDepth) {
      const Pass pass{begin, std::min(begin + kDepth, columns)};
      const T* part = weights + begin * kPanelWidth;
      if (converts) {
        convert_row(part, (pass.end - pass.begin) * kPanelWidth, 1.0f, expanded);
        multiply_pass<float>(task, panel, pass, expanded, sums);
      } else {
        multiply_pass<T>(task, panel, pass, part, sums);
      }
    }
  }
}

void multiply(const LinearTask& task) {
  switch (task.weights->format.kind) {
    case PanelKind::kF16: return multiply_panels<hwy::float16_t>(task);
    case PanelKind::kBF16: return multiply_panels<hwy::bfloat16_t>(task);
    default: return multiply_panels<float>(task);
  }
}

void bind(Kernels& kernels) {
  kernels.linear_float = {.tile_rows = kTileRows,
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
