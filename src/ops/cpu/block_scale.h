// Where block formats keep their scales, for tests that damage them.
#pragma once

#include <cstddef>

#include "tensor/dtype.h"

namespace droidspeak::cpu {

// Of 16 bits of a block's scale whose upper ones are its exponent; 0 for plain types.
inline size_t first_scale(DType dtype) {
  switch (dtype) {
    case DType::kQ6_K:
      return 208;
    case DType::kQ2_K:
      return 80;
    case DType::kQ3_K:
      return 108;
    case DType::kAffine4:
    case DType::kAffine8:
      return 2;  // the upper half of a float
    default:
      return 0;
  }
}

}  // namespace droidspeak::cpu
