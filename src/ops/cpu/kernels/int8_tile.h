// Layout of quantised input rows: a tile interleaves its rows so that a kernel reads it front to
// back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/kernels.h"

namespace droidspeak::cpu {

// An int8 value has so many units of the part behind it.
inline constexpr int kPartShift = 7;

// A position in a tile, at a block of 32 columns. T holds the int8 values: int8_t or int16_t.
// kScales: of the weights, in 32 columns.
template <int kTileRows, class T, int kParts, int kScales>
struct Int8Tile {
  T* quants;           // [columns / 32][kParts][8][kTileRows][4]
  float* scales;       // [columns / 32][kTileRows], of the last part
  float* scaled_sums;  // the same: scale * sum of the block's values, for minima
  int32_t* starts;     // [columns / 32][kScales][kTileRows]: -zero_point * sum of what has a scale

  Int8Tile(std::byte* tile, int64_t columns) {
    const int64_t num_scales = columns / kQuantBlock * kTileRows;
    quants = reinterpret_cast<T*>(tile);
    scales = reinterpret_cast<float*>(quants + columns * kParts * kTileRows);
    scaled_sums = scales + num_scales;
    starts = reinterpret_cast<int32_t*>(scaled_sums + num_scales);
  }

  // To the next block.
  void advance() {
    quants += kQuantBlock * kParts * kTileRows;
    scales += kTileRows;
    scaled_sums += kTileRows;
    starts += kScales * kTileRows;
  }

  static size_t bytes(int64_t columns) {
    const auto rows = static_cast<size_t>(kTileRows);
    const size_t size =
        static_cast<size_t>(columns) * kParts * rows * sizeof(T) +
        static_cast<size_t>(columns / kQuantBlock) * rows * (2 + kScales) * sizeof(float);
    return (size + 63) / 64 * 64;
  }
};

}  // namespace droidspeak::cpu
