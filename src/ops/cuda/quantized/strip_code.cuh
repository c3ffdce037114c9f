// What a lane reads of a strip (strips.h), and the weights in it.
#pragma once

#include <type_traits>
#include <utility>

#include "ops/cuda/device_code/read_once.cuh"
#include "ops/cuda/device_code/vector.cuh"
#include "ops/cuda/quantized/strips.h"

namespace droidspeak::cuda {

// Addresses of a stack, for kernels.
struct StripPointers {
  const unsigned char* strips;
  int64_t strip_bytes;
  int num_chunks;

  __host__ static StripPointers of(const StripStack& stack) {
    return {reinterpret_cast<const unsigned char*>(stack.strips),
            static_cast<int64_t>(stack.shape.strip_bytes()),
            static_cast<int>(stack.shape.num_chunks())};
  }
};

struct NoBits {};

// Of a chunk of a strip.
template <DType kDtype>
struct LaneChunk {
  static constexpr StripFormat kFormat = strip_format(kDtype);
  static constexpr int kHighBits = kFormat.high_bits;
  static constexpr int kZeroPoint = kFormat.zero_point;
  static constexpr bool kHasMinimum = kFormat.has_minimum;
  static constexpr bool kHasSupers = kFormat.has_supers;
  static constexpr int kScaleColumns = kFormat.scale_columns;
  static constexpr int kHighBytes = static_cast<int>(kFormat.high_bytes()) / 32;
  static constexpr int kScaleBytes = static_cast<int>(kFormat.scale_bytes()) / kStripRows;

  // Bytes of a chunk, and of its piece.
  static constexpr int kLow = static_cast<int>(kFormat.low_bytes());
  static constexpr int kHigh = static_cast<int>(kFormat.high_bytes());
  static constexpr int kScales = static_cast<int>(kFormat.scale_bytes());
  static constexpr int64_t kPiece = static_cast<int64_t>(kFormat.piece_bytes());

  using High =
      std::conditional_t<kHighBits == 0,
                         NoBits,
                         std::conditional_t<kHighBits == 1,
                                            uint32_t,
                                            std::conditional_t<kHighBits == 2, uint2, uint4>>>;
  using Scales = std::conditional_t<kScaleBytes == 16, uint4, uint2>;

  uint4 low;
  High high;
  Scales scales;

  // super: of its piece, if there are any.
  __device__ __forceinline__ void load(
      const StripPointers& from, int64_t strip, int chunk, int lane, uint32_t& super) {
    const uint64_t policy = evict_first_policy();
    const int in_piece = chunk % kPieceChunks;
    const int chunks = min(kPieceChunks, from.num_chunks - (chunk - in_piece));
    const unsigned char* piece =
        from.strips + strip * from.strip_bytes + chunk / kPieceChunks * kPiece;
    read_once(low, piece + in_piece * kLow + lane * 16, true, policy);
    piece += chunks * kLow;
    if constexpr (kHighBits > 0)
      read_once(high, piece + in_piece * kHigh + lane * kHighBytes, true, policy);
    piece += chunks * kHigh;
    read_once(scales, piece + in_piece * kScales + lane / 4 * kScaleBytes, true, policy);
    super = 0;
    if constexpr (kHasSupers)
      read_once(super, piece + chunks * kScales + lane / 4 * 4, true, policy);
  }

  // Quants of a pair of a block without their zero point, as exact bf16 numbers. Both are known
  // when the kernel is compiled.
  __device__ __forceinline__ __nv_bfloat162 pair(int block, int index) const {
    if constexpr (kHighBits == 4) {
      const __nv_bfloat162 upper = as_pair(based_nibbles(word_of(high, block), index));
      const __nv_bfloat162 lower = as_pair(based_nibbles(word_of(low, block), index));
      return __hfma2(__hsub2(upper, both(kBase + kZeroPoint / 16)), both(16),
                     __hsub2(lower, both(kBase)));
    } else {
      return __hsub2(based_pair(block, index), both(kBase + kZeroPoint));
    }
  }

  // The same with kBase added and the zero point left in, which is quicker.
  static constexpr int kBase = 128;

  __device__ __forceinline__ __nv_bfloat162 based_pair(int block, int index) const {
    static_assert(kHighBits < 4);
    uint32_t bits = based_nibbles(word_of(low, block), index);
    if constexpr (kHighBits == 1)
      bits = and_or(moved(high, 4 - (4 * block + index)), 0x00100010u, bits);
    if constexpr (kHighBits == 2) {
      const int bit = 2 * (4 * (block % 2) + index);
      bits = and_or(moved(high_of(block), 4 - bit), 0x00300030u, bits);
    }
    return as_pair(bits);
  }

  // How often a quant, counted from the zero point, goes into what bytes() has for it.
  static constexpr int kUnit = kZeroPoint > 0 ? 128 / kZeroPoint : 1;

  // Quants of a block, counted from the zero point, as eight int8: of columns 4 t, 16 + 4 t,
  // 4 t + 1 and 16 + 4 t + 1, then of those two further on. With a zero point the highest bit of a
  // quant becomes that of the byte and is turned over.
  __device__ __forceinline__ uint2 bytes(int block) const {
    const uint32_t word = word_of(low, block);
    if constexpr (kHighBits == 4) {
      const uint32_t upper = word_of(high, block) ^ 0x88888888u;
      return {and_or(upper << 4, 0xf0f0f0f0u, word & 0x0f0f0f0fu),
              and_or(upper, 0xf0f0f0f0u, (word >> 4) & 0x0f0f0f0fu)};
    } else {
      return {bytes_of_pairs(moved(word, kLeft), block, 0),
              bytes_of_pairs(moved(word, kLeft - 4), block, 1)};
    }
  }

  // What multiplies columns [16 half, 16 half + 16) of a block.
  __device__ __forceinline__ float scale(int block, int half, uint32_t super) const {
    if constexpr (kHasSupers) {
      const float unit = half_of(super, 0);
      if constexpr (kHasMinimum) {
        return unit * static_cast<float>((scales.x >> (8 * block)) & 0xffu);
      } else {
        const uint32_t word = block < 2 ? scales.x : scales.y;
        const int shift = 8 * (2 * (block % 2) + half);
        return unit * static_cast<float>(static_cast<int8_t>((word >> shift) & 0xffu));
      }
    } else if constexpr (kHasMinimum) {
      return half_of(word_of(scales, block), 0);
    } else {
      return half_of(block < 2 ? scales.x : scales.y, block % 2);
    }
  }

  __device__ __forceinline__ float minimum(int block, uint32_t super) const {
    static_assert(kHasMinimum);
    if constexpr (kHasSupers) {
      return -(half_of(super, 1) * static_cast<float>((scales.y >> (8 * block)) & 0xffu));
    } else {
      return half_of(word_of(scales, block), 1);
    }
  }

 private:
  static constexpr int kLeft = kZeroPoint > 0 ? 4 - kHighBits : 0;  // bits that bytes are moved

  // Of pairs `first` and first + 2, whose nibbles lie where they belong.
  __device__ __forceinline__ uint32_t bytes_of_pairs(uint32_t nibbles, int block, int first) const {
    uint32_t out = and_xor(nibbles, 0x0f0f0f0fu << kLeft, kZeroPoint > 0 ? 0x80808080u : 0u);
    if constexpr (kHighBits == 1 || kHighBits == 2) {
      constexpr uint32_t kMask = ((1u << kHighBits) - 1) << (4 + kLeft);
      const uint32_t upper = high_of(block);
      const int from = kHighBits * (4 * (kHighBits == 1 ? block : block % 2) + first);
      out = and_xor(moved(upper, 4 + kLeft - from), kMask << 16 | kMask, out);
      out = and_xor(moved(upper, 12 + kLeft - from - 2 * kHighBits), kMask << 24 | kMask << 8, out);
    }
    return out;
  }

  __device__ __forceinline__ uint32_t high_of(int block) const {
    if constexpr (kHighBits == 1) {
      return high;
    } else {
      return block < 2 ? high.x : high.y;
    }
  }

  // Two bf16 numbers 128, whose seven lower bits count ones, with nibbles there.
  __device__ __forceinline__ static uint32_t based_nibbles(uint32_t word, int index) {
    return and_or(word >> (4 * index), 0x000f000fu, 0x43004300u);
  }

  // (word & mask) | base in one instruction.
  __device__ __forceinline__ static uint32_t and_or(uint32_t word, uint32_t mask, uint32_t base) {
    uint32_t out = 0;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(out) : "r"(word), "r"(mask), "r"(base));
    return out;
  }

  // (word & mask) ^ base.
  __device__ __forceinline__ static uint32_t and_xor(uint32_t word, uint32_t mask, uint32_t base) {
    uint32_t out = 0;
    asm("lop3.b32 %0, %1, %2, %3, 0x6A;" : "=r"(out) : "r"(word), "r"(mask), "r"(base));
    return out;
  }

  __device__ __forceinline__ static uint32_t word_of(const uint4& words, int index) {
    const uint32_t all[] = {words.x, words.y, words.z, words.w};
    return all[index];
  }

  __device__ static float half_of(uint32_t word, int index) {
    return __half2float(__ushort_as_half(static_cast<uint16_t>(word >> (16 * index))));
  }

  __device__ static uint32_t moved(uint32_t word, int left) {
    return left >= 0 ? word << left : word >> -left;
  }

  __device__ static __nv_bfloat162 as_pair(uint32_t bits) {
    return *reinterpret_cast<const __nv_bfloat162*>(&bits);
  }

  __device__ static __nv_bfloat162 both(int value) {
    return __float2bfloat162_rn(static_cast<float>(value));
  }
};

template <class Body, size_t... kIndices>
bool call_with_strip_dtype(DType dtype, const Body& body, std::index_sequence<kIndices...>) {
  auto call_if = [&](auto known) {
    if (dtype != known.value) return false;
    body(known);
    return true;
  };
  return (call_if(std::integral_constant<DType, kStripDtypes[kIndices]>{}) || ...);
}

// Calls body with the dtype as a constant.
template <class Body>
void with_strip_dtype(DType dtype, const Body& body) {
  const bool is_known =
      call_with_strip_dtype(dtype, body, std::make_index_sequence<std::size(kStripDtypes)>{});
  check(is_known, "a format that has strips");
}

}  // namespace droidspeak::cuda
