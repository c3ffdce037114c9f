#include "ops/cpu/super_block.h"

#include <cmath>
#include <cstring>

#include "tensor/half.h"

namespace droidspeak::cpu {
namespace {

uint16_t load_u16(const uint8_t* bytes) {
  uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return bits;
}

// Eight scales, then eight minima; see tensor/dequantize.
void read_q4_k_codes(const uint8_t* packed, uint8_t* codes) {
  for (int i = 0; i < 4; ++i) {
    codes[i] = packed[i] & 63;
    codes[8 + i] = packed[4 + i] & 63;
    codes[4 + i] = static_cast<uint8_t>((packed[8 + i] & 15) | (packed[i] >> 6 << 4));
    codes[12 + i] = static_cast<uint8_t>((packed[8 + i] >> 4) | (packed[4 + i] >> 6 << 4));
  }
}

void read_q3_k_codes(const uint8_t* packed, uint8_t* codes) {
  for (int i = 0; i < kSuperCodes; ++i) {
    const int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
    const int high = (packed[8 + i % 4] >> (2 * (i / 4))) & 3;
    codes[i] = static_cast<uint8_t>(low | (high << 4));
  }
}

// Where the runs of 32 quants of a super-block lie: bits of 32 bytes each.
struct Plane {
  const uint8_t* bytes;
  int bits;
  int shift_step;     // from one run of the same bytes to the next
  int runs_together;  // that share 32 bytes

  int at(int run, int i) const {
    const int shift = run % runs_together * shift_step;
    return (bytes[run / runs_together * 32 + i] >> shift) & ((1 << bits) - 1);
  }
};

void read_quants(const Plane& low, const Plane& high, uint8_t* quants) {
  for (int run = 0; run < 8; ++run) {
    for (int i = 0; i < 32; ++i) {
      const int upper = high.bits > 0 ? high.at(run, i) << low.bits : 0;
      *quants++ = static_cast<uint8_t>(low.at(run, i) | upper);
    }
  }
}

// A half's runs 0 and 1 are low nibbles of its two groups of 32 bytes, runs 2 and 3 their high
// ones.
void read_q6_k_quants(const uint8_t* bytes, uint8_t* quants) {
  const Plane high{bytes + 128, 2, 2, 4};
  for (int run = 0; run < 8; ++run) {
    const uint8_t* low = bytes + 64 * (run / 4) + 32 * (run % 2);
    const int shift = run % 4 < 2 ? 0 : 4;
    for (int i = 0; i < 32; ++i)
      *quants++ = static_cast<uint8_t>(((low[i] >> shift) & 15) | (high.at(run, i) << 4));
  }
}

// Where a plane holds four columns of a row: 64 bytes have them for 16 rows, and 8 / bits such
// quads of a run of 32 columns share their bytes.
struct QuadPlace {
  int64_t byte;
  int shift;

  QuadPlace(int bits, int quad, int64_t lane) {
    const int together = 8 / bits;
    byte = quad / 8 * 64 * bits + quad % 8 / together * 64 + lane * 4;
    shift = quad % together * bits;
  }
};

// Bits [first, first + bits) of the quants.
void store_plane(int first, int bits, const uint8_t* quants, int64_t lane, uint8_t* plane) {
  const int mask = (1 << bits) - 1;
  for (int quad = 0; quad < kSuperBlock / 4; ++quad, quants += 4) {
    const QuadPlace at(bits, quad, lane);
    for (int i = 0; i < 4; ++i) {
      uint8_t& to = plane[at.byte + i];
      to = static_cast<uint8_t>(to | (((quants[i] >> first) & mask) << at.shift));
    }
  }
}

int bits_at(const uint8_t* plane, int bits, int column, int64_t lane) {
  const QuadPlace at(bits, column / 4, lane);
  return (plane[at.byte + column % 4] >> at.shift) & ((1 << bits) - 1);
}

// Codes of six bits: the first eight in bytes whose upper two bits are those of the other eight.
void store_codes(bool are_short, const uint8_t* codes, int64_t lane, uint8_t* to) {
  for (int i = 0; i < kSuperCodes; ++i) {
    if (!are_short) {
      to[i * kPanelWidth + lane] = codes[i];
    } else if (i < 8) {
      to[i * kPanelWidth + lane] = static_cast<uint8_t>(codes[i] | codes[8 + i] >> 4 << 6);
    } else {
      uint8_t& nibbles = to[(8 + (i - 8) / 2) * kPanelWidth + lane];
      const int nibble = codes[i] & 15;
      nibbles = static_cast<uint8_t>(i % 2 == 0 ? nibble : nibbles | (nibble << 4));
    }
  }
}

int code_at(bool are_short, const uint8_t* codes, int64_t lane, int i) {
  if (!are_short) return codes[i * kPanelWidth + lane];
  if (i < 8) return codes[i * kPanelWidth + lane] & 63;
  const int nibbles = codes[(8 + (i - 8) / 2) * kPanelWidth + lane];
  return ((nibbles >> (i % 2 * 4)) & 15) | (codes[(i - 8) * kPanelWidth + lane] >> 6 << 4);
}

struct BlockCodes {
  int scale;
  int minimum;
};

BlockCodes codes_of(PanelKind kind, const uint8_t* codes, int64_t lane, int block) {
  const bool are_short = super_traits(kind).has_short_codes;
  const int code = code_at(are_short, codes, lane, block);
  switch (kind) {
    case PanelKind::kQ2K:
      return {code & 15, code >> 4};
    case PanelKind::kQ3K:
      return {code - 32, 0};
    case PanelKind::kQ6K:
      return {static_cast<int8_t>(code), 0};
    default:
      return {code, code_at(are_short, codes, lane, 8 + block)};
  }
}

}  // namespace

bool SuperBlock::is_finite() const {
  return std::isfinite(float_from_f16(scale)) && std::isfinite(float_from_f16(minimum));
}

SuperBlock read_super_block(DType dtype, const uint8_t* bytes) {
  SuperBlock out{};
  switch (dtype) {
    case DType::kQ2_K:
      std::memcpy(out.codes, bytes, kSuperCodes);
      read_quants({bytes + 16, 2, 2, 4}, {}, out.quants);
      out.scale = load_u16(bytes + 80);
      out.minimum = load_u16(bytes + 82);
      break;
    case DType::kQ3_K:
      read_q3_k_codes(bytes + 96, out.codes);
      read_quants({bytes + 32, 2, 2, 4}, {bytes, 1, 1, 8}, out.quants);
      out.scale = load_u16(bytes + 108);
      break;
    case DType::kQ6_K:
      std::memcpy(out.codes, bytes + 192, kSuperCodes);
      read_q6_k_quants(bytes, out.quants);
      out.scale = load_u16(bytes + 208);
      break;
    default: {
      const bool has_fifth_bits = dtype == DType::kQ5_K;
      read_q4_k_codes(bytes + 4, out.codes);
      const Plane low{bytes + (has_fifth_bits ? 48 : 16), 4, 4, 2};
      read_quants(low, has_fifth_bits ? Plane{bytes + 16, 1, 1, 8} : Plane{}, out.quants);
      out.scale = load_u16(bytes);
      out.minimum = load_u16(bytes + 2);
    }
  }
  return out;
}

void store_super_block(PanelKind kind, const SuperBlock& block, int64_t lane, uint8_t* panel) {
  const SuperTraits traits = super_traits(kind);
  uint8_t* high = panel + traits.low_bytes();
  uint8_t* codes = high + traits.high_bytes();
  uint8_t* scales = codes + traits.code_bytes();
  store_plane(0, traits.low_bits, block.quants, lane, panel);
  if (traits.high_bits > 0)
    store_plane(traits.low_bits, traits.high_bits, block.quants, lane, high);
  store_codes(traits.has_short_codes, block.codes, lane, codes);
  std::memcpy(scales + 2 * lane, &block.scale, 2);
  if (traits.has_minimum) std::memcpy(scales + 2 * (kPanelWidth + lane), &block.minimum, 2);
}

void expand_super_block(const PanelFormat& format, const uint8_t* panel, int64_t lane, float* out) {
  const SuperTraits traits = super_traits(format.kind);
  const uint8_t* high = panel + traits.low_bytes();
  const uint8_t* codes = high + traits.high_bytes();
  const uint8_t* scales = codes + traits.code_bytes();
  const float scale = float_from_f16(load_u16(scales + 2 * lane));
  const float minimum =
      traits.has_minimum ? float_from_f16(load_u16(scales + 2 * (kPanelWidth + lane))) : 0.0f;
  for (int i = 0; i < kSuperBlock; ++i) {
    const BlockCodes code = codes_of(format.kind, codes, lane, i / traits.block);
    int quant = bits_at(panel, traits.low_bits, i, lane) - format.zero_point;
    if (traits.high_bits > 0) quant += bits_at(high, traits.high_bits, i, lane) << traits.low_bits;
    const float step = scale * static_cast<float>(code.scale);
    *out++ = step * static_cast<float>(quant) - minimum * static_cast<float>(code.minimum);
  }
}

}  // namespace droidspeak::cpu
