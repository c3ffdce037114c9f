// Element types, the GGUF block formats included: a block packs several elements and their scales.
// The affine formats and fp8 lie in no file: they hold what other formats spread over several
// tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace droidspeak {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kI8,
  kI32,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kQ2_K,
  kQ3_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
  kAffine4,
  kAffine8,
  // 32 codes of 8 bits, four of them exponent (E4M3), behind a float that scales them and is the
  // same for the whole row. Activations are to be rounded to such codes, too, by a scale for each
  // row.
  kFp8,
};

struct DTypeTraits {
  std::string_view name;  // "f32", "q4_1"
  int block_elements;     // 1 for plain types
  int block_bytes;
};

const DTypeTraits& traits(DType dtype);

inline std::string_view name_of(DType dtype) {
  return traits(dtype).name;
}

inline bool is_block_format(DType dtype) {
  return traits(dtype).block_elements > 1;
}

// `elements` is a multiple of the block size.
inline size_t bytes_of(DType dtype, int64_t elements) {
  const DTypeTraits& t = traits(dtype);
  return static_cast<size_t>(elements / t.block_elements) * static_cast<size_t>(t.block_bytes);
}

}  // namespace droidspeak
