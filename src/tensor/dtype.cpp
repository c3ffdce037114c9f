#include "tensor/dtype.h"

#include <iterator>

#include "base/check.h"

namespace droidspeak {

const DTypeTraits& traits(DType dtype) {
  // In the order of the enumerators.
  static constexpr DTypeTraits kTraits[] = {
      {"f32", 1, 4},        {"f16", 1, 2},     {"bf16", 1, 2},      {"i8", 1, 1},
      {"i32", 1, 4},        {"q8_0", 32, 34},  {"q4_0", 32, 18},    {"q4_1", 32, 20},
      {"q5_0", 32, 22},     {"q5_1", 32, 24},  {"q4_k", 256, 144},  {"q5_k", 256, 176},
      {"q6_k", 256, 210},   {"q2_k", 256, 84}, {"q3_k", 256, 110},  {"iq4_nl", 32, 18},
      {"iq4_xs", 256, 136}, {"mxfp4", 32, 17}, {"affine4", 32, 24}, {"affine8", 32, 40},
      {"fp8", 32, 36},
  };
  static_assert(std::size(kTraits) == static_cast<size_t>(DType::kFp8) + 1);
  auto index = static_cast<size_t>(dtype);
  check(index < std::size(kTraits), "dtype is one of the enumerators");
  return kTraits[index];
}

}  // namespace droidspeak
