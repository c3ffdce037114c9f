// Weights that stay quantised in device memory: the quants and scales of a GGUF file, in an order
// in which a warp reads more than 1 KiB side by side and a lane has what the tensor cores want.
//
// A strip is 8 matrix rows, a chunk of it 128 columns. Of a chunk, lane 4 g + t has a part of row
// g: in each of its four blocks of 32 columns, columns 4 t to 4 t + 3 and 16 + 4 t to 16 + 4 t + 3.
// These are four pairs; pair p is columns 16 (p / 2) + 4 t + 2 (p % 2) and the next.
//
// Two chunks of a strip are a piece, or the last one alone; pieces follow each other, strips too. A
// piece is, one behind the other and nothing between:
//
//   low     [chunk][lane] four words, one a block. Bits 4 p and on of their lower half are the
//           lower four bits of the first quant of pair p, those of the upper half the second.
//   high    [chunk][lane] the bits of a quant above four, of pair p of block b:
//           one of them (q5): a word, bit 4 b + p of each half;
//           two (q6_k): two words, of blocks 0 and 1, 2 and 3, bits 2 (4 (b % 2) + p) and on;
//           four (q8_0): as `low`.
//   scales  [chunk][row] four f16 scales of the blocks; four pairs of f16 scale and minimum;
//           under `supers` four scales, then four minima, or eight signed scales, of 8 bits each.
//   supers  [row] f16 scale and minimum of the piece that the 8-bit ones count.
//
// weight = scale * (quant - zero point) + minimum, quants counted from 0. Rows are filled up with
// zeros to a multiple of 16, columns to one of 128.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "base/check.h"
#include "tensor/dtype.h"

namespace droidspeak::cuda {

// The formats of which there are strips.
inline constexpr DType kStripDtypes[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                                         DType::kQ5_1, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

inline constexpr int kStripRows = 8;
inline constexpr int kStripColumns = 128;  // of a chunk
inline constexpr int kTileRows = 2 * kStripRows;
inline constexpr int kPieceChunks = 2;

struct StripFormat {
  int high_bits = 0;
  int zero_point = 0;
  bool has_minimum = false;
  bool has_supers = false;
  int scale_columns = 32;

  constexpr size_t low_bytes() const { return 512; }  // of a chunk, as those below

  constexpr size_t high_bytes() const { return static_cast<size_t>(high_bits) * 128; }

  constexpr size_t scale_bytes() const { return has_minimum && !has_supers ? 128 : 64; }

  constexpr size_t super_bytes() const { return has_supers ? 32 : 0; }  // of a piece

  constexpr size_t chunk_bytes() const { return low_bytes() + high_bytes() + scale_bytes(); }

  constexpr size_t piece_bytes() const { return kPieceChunks * chunk_bytes() + super_bytes(); }
};

constexpr bool stays_quantized(DType dtype) {
  return std::ranges::find(kStripDtypes, dtype) != std::end(kStripDtypes);
}

// stays_quantized(dtype) holds.
constexpr StripFormat strip_format(DType dtype) {
  switch (dtype) {
    case DType::kQ8_0:
      return {.high_bits = 4, .zero_point = 128};
    case DType::kQ4_0:
      return {.zero_point = 8};
    case DType::kQ4_1:
      return {.has_minimum = true};
    case DType::kQ5_0:
      return {.high_bits = 1, .zero_point = 16};
    case DType::kQ5_1:
      return {.high_bits = 1, .has_minimum = true};
    case DType::kQ4_K:
      return {.has_minimum = true, .has_supers = true};
    case DType::kQ5_K:
      return {.high_bits = 1, .has_minimum = true, .has_supers = true};
    case DType::kQ6_K:
      return {.high_bits = 2, .zero_point = 32, .has_supers = true, .scale_columns = 16};
    default:
      panic("a format that has strips");
  }
}

// How many strips and chunks some rows of one format take.
struct StripShape {
  DType dtype = DType::kQ4_0;
  int64_t rows = 0;
  int64_t columns = 0;

  int64_t num_strips() const { return (rows + kTileRows - 1) / kTileRows * 2; }

  int64_t num_chunks() const { return (columns + kStripColumns - 1) / kStripColumns; }

  size_t strip_bytes() const {
    const StripFormat format = strip_format(dtype);
    const auto chunks = static_cast<size_t>(num_chunks());
    return chunks * format.chunk_bytes() + chunks / kPieceChunks * format.super_bytes();
  }

  size_t bytes() const { return static_cast<size_t>(num_strips()) * strip_bytes(); }
};

// Where the planes of a chunk begin, in bytes from its strip's begin.
struct ChunkPlanes {
  size_t low = 0;
  size_t high = 0;
  size_t scales = 0;
  size_t supers = 0;

  ChunkPlanes(const StripShape& shape, int64_t chunk) {
    const StripFormat format = strip_format(shape.dtype);
    const auto in_piece = static_cast<size_t>(chunk % kPieceChunks);
    const int64_t first = chunk - chunk % kPieceChunks;
    const auto chunks =
        static_cast<size_t>(std::min<int64_t>(kPieceChunks, shape.num_chunks() - first));
    const size_t begin = static_cast<size_t>(chunk / kPieceChunks) * format.piece_bytes();
    low = begin + in_piece * format.low_bytes();
    high = begin + chunks * format.low_bytes() + in_piece * format.high_bytes();
    scales = begin + chunks * (format.low_bytes() + format.high_bytes()) +
             in_piece * format.scale_bytes();
    supers = begin + chunks * format.chunk_bytes();
  }
};

// Rows of one format in device memory, which a matrix has one or more of, one below the other.
struct StripStack {
  StripShape shape;
  int64_t first_row = 0;  // of the matrix
  std::byte* strips = nullptr;
};

}  // namespace droidspeak::cuda
