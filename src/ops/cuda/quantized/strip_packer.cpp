// The blocks as they lie in a file are described in tensor/dequantize.cpp.
#include "ops/cuda/quantized/strip_packer.h"

#include <bit>
#include <cstring>

namespace droidspeak::cuda {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr int kBlock = 32;  // columns
constexpr int kLanes = 4;   // that share a row

// Of one block, counted from 0.
using Quants = uint8_t[kBlock];

void read_nibbles(const uint8_t* bytes, Quants& quants) {
  for (int i = 0; i < kBlock / 2; ++i) {
    quants[i] = bytes[i] & 15;
    quants[i + kBlock / 2] = bytes[i] >> 4;
  }
}

void add_fifth_bits(const uint8_t* bytes, Quants& quants) {
  uint32_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  for (int i = 0; i < kBlock; ++i)
    quants[i] = static_cast<uint8_t>(quants[i] | ((bits >> i) & 1u) << 4);
}

// 32 bytes hold two blocks: low nibbles, high nibbles.
void read_k_nibbles(const uint8_t* bytes, int block, Quants& quants) {
  const uint8_t* from = bytes + block / 2 * kBlock;
  for (int i = 0; i < kBlock; ++i) quants[i] = (from[i] >> (block % 2 * 4)) & 15;
}

void read_q6_k(const uint8_t* super, int block, Quants& quants) {
  const int half = block / 4;
  const int run = block % 4;
  const uint8_t* lower = super + 64 * half + 32 * (run & 1);
  const uint8_t* upper = super + 128 + 32 * half;
  for (int i = 0; i < kBlock; ++i) {
    const int low = (lower[i] >> (run < 2 ? 0 : 4)) & 15;
    quants[i] = static_cast<uint8_t>(low | ((upper[i] >> (2 * run)) & 3) << 4);
  }
}

// `at` is the block of the file, which is of 256 columns with the K formats.
void read_quants(DType dtype, const uint8_t* at, int block, Quants& quants) {
  switch (dtype) {
    case DType::kQ8_0:
      for (int i = 0; i < kBlock; ++i) quants[i] = static_cast<uint8_t>(at[2 + i] ^ 128);
      return;
    case DType::kQ4_0:
      return read_nibbles(at + 2, quants);
    case DType::kQ4_1:
      return read_nibbles(at + 4, quants);
    case DType::kQ5_0:
      read_nibbles(at + 6, quants);
      return add_fifth_bits(at + 2, quants);
    case DType::kQ5_1:
      read_nibbles(at + 8, quants);
      return add_fifth_bits(at + 4, quants);
    case DType::kQ4_K:
      return read_k_nibbles(at + 16, block, quants);
    case DType::kQ5_K:
      read_k_nibbles(at + 48, block, quants);
      for (int i = 0; i < kBlock; ++i)
        quants[i] = static_cast<uint8_t>(quants[i] | ((at[16 + i] >> block) & 1) << 4);
      return;
    case DType::kQ6_K:
      return read_q6_k(at, block, quants);
    default:
      panic("a format that has strips");
  }
}

// Of two pairs, four bytes: the first ones of both, then 16 bits above the second ones, each of
// `step` bits from bit `first` of its byte on.
uint32_t gather_pairs(const uint8_t* quants, int first, int step) {
  uint32_t bytes = 0;
  std::memcpy(&bytes, quants, sizeof bytes);
  const uint32_t mask = ((1u << step) - 1) * 0x00010001u;
  const uint32_t both = (1u << 2 * step) - 1;
  const uint32_t firsts = (bytes >> first) & mask;
  const uint32_t seconds = (bytes >> (first + 8)) & mask;
  return ((firsts | firsts >> (16 - step)) & both) | ((seconds | seconds >> (16 - step)) & both)
                                                         << 16;
}

// The bits of a lane's eight quants from bit `first` on, each pair `step` bits above the one before
// and the second of a pair 16 bits above the first.
uint32_t gather(const Quants& quants, int lane, int first, int step) {
  return gather_pairs(quants + 4 * lane, first, step) |
         gather_pairs(quants + 16 + 4 * lane, first, step) << 2 * step;
}

void or_word(std::byte* at, uint32_t bits) {
  uint32_t word = 0;
  std::memcpy(&word, at, sizeof word);
  word |= bits;
  std::memcpy(at, &word, sizeof word);
}

// lane_low, lane_high: what the lane has of the chunk.
void store_quants(const StripFormat& format,
                  uint32_t block,
                  const Quants& quants,
                  int lane,
                  std::byte* lane_low,
                  std::byte* lane_high) {
  or_word(lane_low + 4 * block, gather(quants, lane, 0, 4));
  if (format.high_bits == 0) return;
  const uint32_t high = gather(quants, lane, 4, format.high_bits);
  if (format.high_bits == 1) or_word(lane_high, high << (4 * block));
  if (format.high_bits == 2) or_word(lane_high + block / 2 * 4, high << (8 * (block % 2)));
  if (format.high_bits == 4) or_word(lane_high + 4 * block, high);
}

// f16.
bool is_finite(const std::byte* bytes) {
  uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return (bits & 0x7c00) != 0x7c00;
}

// The six-bit scale and minimum of a block of q4_k and q5_k.
void read_six_bits(const uint8_t* packed, int block, uint8_t& scale, uint8_t& minimum) {
  const int low = block & 3;
  scale = packed[low] & 63;
  minimum = packed[low + 4] & 63;
  if (block < 4) return;
  scale = static_cast<uint8_t>((packed[block + 4] & 15) | (packed[low] >> 6) << 4);
  minimum = static_cast<uint8_t>((packed[block + 4] >> 4) | (packed[low + 4] >> 6) << 4);
}

// row_scales: of the chunk; row_super: of its 256 columns.
bool store_scales(const StripShape& shape,
                  const uint8_t* at,
                  int block,
                  std::byte* row_scales,
                  std::byte* row_super) {
  const StripFormat format = strip_format(shape.dtype);
  const int place = block % 4;  // in the chunk
  const auto* bytes = reinterpret_cast<const std::byte*>(at);
  if (!format.has_supers) {
    const int size = format.has_minimum ? 4 : 2;
    std::memcpy(row_scales + size * place, bytes, static_cast<size_t>(size));
    return is_finite(bytes) && (!format.has_minimum || is_finite(bytes + 2));
  }
  auto* scales = reinterpret_cast<uint8_t*>(row_scales);
  if (shape.dtype == DType::kQ6_K) {
    std::memcpy(scales + 2 * place, at + 192 + 2 * block, 2);
    std::memcpy(row_super, bytes + 208, 2);
    return is_finite(bytes + 208);
  }
  read_six_bits(at + 4, block, scales[place], scales[4 + place]);
  std::memcpy(row_super, bytes, 4);
  return is_finite(bytes) && is_finite(bytes + 2);
}

}  // namespace

std::vector<StripShape> stacks_of(std::span<const MatrixPart> parts) {
  std::vector<StripShape> shapes;
  for (const MatrixPart& part : parts) {
    if (part.rows == 0) continue;
    if (!stays_quantized(part.dtype)) return {};
    if (shapes.empty() || shapes.back().dtype != part.dtype)
      shapes.push_back({.dtype = part.dtype, .rows = 0, .columns = part.columns});
    shapes.back().rows += part.rows;
  }
  return shapes;
}

bool pack_strip_row(const StripShape& shape, const std::byte* row, int place, std::byte* strip) {
  const StripFormat format = strip_format(shape.dtype);
  const DTypeTraits& file = traits(shape.dtype);
  const int blocks_each = file.block_elements / kBlock;
  const auto high_bytes = static_cast<int64_t>(format.high_bytes()) / 32;
  const auto scale_bytes = static_cast<int64_t>(format.scale_bytes()) / kStripRows;
  bool are_finite = true;
  for (int64_t index = 0; index < shape.columns / kBlock; ++index) {
    const auto* at = reinterpret_cast<const uint8_t*>(row) + index / blocks_each * file.block_bytes;
    const auto block = static_cast<int>(index % blocks_each);
    const ChunkPlanes planes(shape, index / 4);
    const auto block_of_chunk = static_cast<uint32_t>(index % 4);
    Quants quants;
    read_quants(shape.dtype, at, block, quants);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int at_lane = kLanes * place + lane;
      std::byte* high = high_bytes == 0 ? nullptr : strip + planes.high + at_lane * high_bytes;
      store_quants(format, block_of_chunk, quants, lane, strip + planes.low + at_lane * 16, high);
    }
    std::byte* super = strip + planes.supers + place * 4;
    std::byte* scales = strip + planes.scales + place * scale_bytes;
    const int in_file = format.has_supers ? block : static_cast<int>(block_of_chunk);
    are_finite &= store_scales(shape, at, in_file, scales, super);
  }
  return are_finite;
}

}  // namespace droidspeak::cuda
