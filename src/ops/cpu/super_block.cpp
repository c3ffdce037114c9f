#include "ops/cpu/super_block.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/cpu/quant_block.h"
#include "tensor/half.h"

namespace droidspeak::cpu {
namespace {

constexpr int kQuads = kQuantBlock / 4;
constexpr int kSixBits = 63;

// A super-block as the file means it. Six-bit codes of scales and minima for 32, or signed ones of
// scales for 16.
struct Codes {
  uint8_t quants[kSuperColumns];
  uint8_t scales[16];
  uint8_t minima[8];
  uint16_t scale_unit;    // f16
  uint16_t minimum_unit;  // f16
};

uint16_t load_bits(const uint8_t* bytes) {
  uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return bits;
}

bool is_finite(uint16_t f16) {
  constexpr uint16_t exponent = 0x7c00;
  return (f16 & exponent) != exponent;
}

// Of q4_k and q5_k; see tensor/dequantize.
void read_short_codes(const uint8_t* packed, Codes& out) {
  for (int block = 0; block < kSuperBlocks; ++block) {
    const int scale = packed[block & 3];
    const int minimum = packed[(block & 3) + 4];
    if (block < 4) {
      out.scales[block] = static_cast<uint8_t>(scale & kSixBits);
      out.minima[block] = static_cast<uint8_t>(minimum & kSixBits);
    } else {
      const int low = packed[block + 4];
      out.scales[block] = static_cast<uint8_t>((low & 15) | ((scale >> 6) << 4));
      out.minima[block] = static_cast<uint8_t>((low >> 4) | ((minimum >> 6) << 4));
    }
  }
}

// 32 bytes hold two blocks: low nibbles, high nibbles.
void read_pairs_of_blocks(const uint8_t* bytes, uint8_t* quants) {
  for (int pair = 0; pair < kSuperBlocks / 2; ++pair, bytes += 32, quants += 64) {
    for (int i = 0; i < kQuantBlock; ++i) {
      quants[i] = bytes[i] & 15;
      quants[i + 32] = bytes[i] >> 4;
    }
  }
}

Codes read_k45(DType dtype, const uint8_t* super) {
  Codes out{};
  out.scale_unit = load_bits(super);
  out.minimum_unit = load_bits(super + 2);
  read_short_codes(super + 4, out);
  if (dtype == DType::kQ4_K) {
    read_pairs_of_blocks(super + 16, out.quants);
    return out;
  }
  read_pairs_of_blocks(super + 48, out.quants);
  for (int i = 0; i < kSuperColumns; ++i) {
    const int high = super[16 + i % kQuantBlock] >> (i / kQuantBlock) & 1;
    out.quants[i] = static_cast<uint8_t>(out.quants[i] | high << 4);
  }
  return out;
}

Codes read_q6_k(const uint8_t* super) {
  Codes out{};
  out.scale_unit = load_bits(super + 208);
  std::copy_n(super + 192, 16, out.scales);
  for (int i = 0; i < kSuperColumns; ++i) {
    const int half = i / 128;
    const int run = i / kQuantBlock % 4;
    const int at = i % kQuantBlock;
    const int low = super[64 * half + 32 * (run & 1) + at] >> (run < 2 ? 0 : 4) & 15;
    const int high = super[128 + 32 * half + at] >> (2 * run) & 3;
    out.quants[i] = static_cast<uint8_t>(low | high << 4);
  }
  return out;
}

// Where the pieces of a super-block of a panel lie.
struct Pieces {
  PanelKind kind;
  SuperLayout layout = SuperLayout::of(kind);
  uint8_t* super;

  uint8_t& low(int column, int lane) const {
    const int quad = column / 4;
    return super[layout.low_begin() + quad / 2 * 64 + lane * 4 + column % 4];
  }

  static int low_shift(int column) { return column / 4 % 2 * 4; }

  uint8_t& high(int column, int lane) const {
    const int quad = column / 4 % kQuads;
    return super[layout.high_begin() + column / kQuantBlock * layout.high_block_bytes() +
                 quad * layout.high_bits / 8 * 64 + lane * 4 + column % 4];
  }

  int high_shift(int column) const { return column / 4 % kQuads * layout.high_bits % 8; }

  int high_mask() const { return (1 << layout.high_bits) - 1; }

  uint8_t& code(int index, int lane) const {
    return super[layout.code_begin() + index * kPanelWidth + lane];
  }

  uint16_t& unit(int index, int lane) const {
    return reinterpret_cast<uint16_t*>(super + layout.unit_begin())[index * kPanelWidth + lane];
  }

  // Of a block of 32; kU6 has none.
  int minimum_code(int block, int lane) const {
    const int low = code(kSuperBlocks + block / 2, lane) >> (block % 2 * 4) & 15;
    return low | code(block, lane) >> 6 << 4;
  }

  int quant(int column, int lane) const {
    int quant = low(column, lane) >> low_shift(column) & 15;
    if (layout.high_bits > 0)
      quant |= (high(column, lane) >> high_shift(column) & high_mask()) << 4;
    return quant;
  }
};

void store_codes(const Codes& codes, int lane, const Pieces& to) {
  if (to.kind == PanelKind::kU6) {
    for (int i = 0; i < 16; ++i) to.code(i, lane) = codes.scales[i];
    return;
  }
  for (int block = 0; block < kSuperBlocks; ++block) {
    const int minimum = codes.minima[block];
    to.code(block, lane) = static_cast<uint8_t>(codes.scales[block] | minimum >> 4 << 6);
    to.code(kSuperBlocks + block / 2, lane) |=
        static_cast<uint8_t>((minimum & 15) << (block % 2 * 4));
  }
}

}  // namespace

bool store_super_block(DType dtype, const std::byte* super, int lane, std::byte* panel) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(super);
  const Codes codes = dtype == DType::kQ6_K ? read_q6_k(bytes) : read_k45(dtype, bytes);
  const Pieces to{.kind = packed_format(dtype).kind, .super = reinterpret_cast<uint8_t*>(panel)};
  for (int i = 0; i < kSuperColumns; ++i) {
    to.low(i, lane) |= static_cast<uint8_t>((codes.quants[i] & 15) << Pieces::low_shift(i));
    if (to.layout.high_bits > 0)
      to.high(i, lane) |= static_cast<uint8_t>(codes.quants[i] >> 4 << to.high_shift(i));
  }
  store_codes(codes, lane, to);
  constexpr uint16_t sign = 0x8000;
  to.unit(0, lane) = codes.scale_unit;
  if (to.kind != PanelKind::kU6)
    to.unit(1, lane) = static_cast<uint16_t>(codes.minimum_unit ^ sign);
  return is_finite(codes.scale_unit) && is_finite(codes.minimum_unit);
}

void read_super_block(const PanelFormat& format, const std::byte* panel, int lane, float* out) {
  auto* super = const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(panel));
  const Pieces from{.kind = format.kind, .super = super};
  const float scale_unit = float_from_f16(from.unit(0, lane));
  const float minimum_unit = format.has_minimum ? float_from_f16(from.unit(1, lane)) : 0.0f;
  for (int i = 0; i < kSuperColumns; ++i) {
    const int block = i / kQuantBlock;
    const int scale = format.kind == PanelKind::kU6 ? static_cast<int8_t>(from.code(i / 16, lane))
                                                    : from.code(block, lane) & kSixBits;
    const int minimum = format.has_minimum ? from.minimum_code(block, lane) : 0;
    out[i] = static_cast<float>(from.quant(i, lane) - format.zero_point) *
                 (scale_unit * static_cast<float>(scale)) +
             minimum_unit * static_cast<float>(minimum);
  }
}

}  // namespace droidspeak::cpu
