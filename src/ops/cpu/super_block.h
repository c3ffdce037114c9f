// The super-blocks of K-quants: 256 quants of 2 to 6 bits in blocks of 16 or 32, whose scales and
// minima are codes of a few bits under two f16. Panels hold 16 rows of them in as many bytes as the
// file does; see docs/decisions/040-k-quants-at-their-size.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/kernels.h"
#include "tensor/dtype.h"

namespace droidspeak::cpu {

inline constexpr int kSuperBlock = 256;
// Scales, or eight scales and eight minima.
inline constexpr int kSuperCodes = 16;

// weight = scale * (quant - zero_point) + minimum, for `block` quants.
struct SuperTraits {
  int low_bits;   // of a quant, in the first plane
  int high_bits;  // and above them, in the second
  int block;
  bool has_minimum;
  bool has_short_codes;  // of six bits: sixteen of them in 12 bytes

  constexpr int low_bytes() const { return kSuperBlock * kPanelWidth / 8 * low_bits; }

  constexpr int high_bytes() const { return kSuperBlock * kPanelWidth / 8 * high_bits; }

  constexpr int code_bytes() const { return (has_short_codes ? 12 : 16) * kPanelWidth; }

  // Of 16 rows: low plane, high plane, codes, 16 f16 scales and, if there are, 16 f16 minima.
  constexpr int bytes() const {
    return low_bytes() + high_bytes() + code_bytes() + (has_minimum ? 4 : 2) * kPanelWidth;
  }
};

constexpr bool is_super(PanelKind kind) {
  return kind >= PanelKind::kQ2K;
}

constexpr SuperTraits super_traits(PanelKind kind) {
  switch (kind) {
    case PanelKind::kQ2K:
      return {2, 0, 16, true, false};
    case PanelKind::kQ3K:
      return {2, 1, 16, false, true};
    case PanelKind::kQ4K:
      return {4, 0, 32, true, true};
    case PanelKind::kQ5K:
      return {4, 1, 32, true, true};
    default:  // kQ6K
      return {4, 2, 16, false, false};
  }
}

// One row's super-block.
struct SuperBlock {
  uint8_t quants[kSuperBlock];
  uint8_t codes[kSuperCodes];  // as the file has them
  uint16_t scale;              // f16
  uint16_t minimum;            // f16, or 0

  bool is_finite() const;
};

SuperBlock read_super_block(DType dtype, const uint8_t* bytes);

// Row `lane` of 16; `panel` begins a super-block.
void store_super_block(PanelKind kind, const SuperBlock& block, int64_t lane, uint8_t* panel);
void expand_super_block(const PanelFormat& format, const uint8_t* panel, int64_t lane, float* out);

}  // namespace droidspeak::cpu
