#include "formats/gguf_tensor_type.h"

#include <iterator>

namespace droidspeak {

namespace {

// In the order of the numbers; some are of types that ggml has removed since.
constexpr GgufTensorType kTypes[] = {
    {"f32", DType::kF32},
    {"f16", DType::kF16},
    {"q4_0", DType::kQ4_0},
    {"q4_1", DType::kQ4_1},
    {"q4_2", {}},
    {"q4_3", {}},
    {"q5_0", DType::kQ5_0},
    {"q5_1", DType::kQ5_1},
    {"q8_0", DType::kQ8_0},
    {"q8_1", {}},
    {"q2_k", DType::kQ2_K},
    {"q3_k", DType::kQ3_K},
    {"q4_k", DType::kQ4_K},
    {"q5_k", DType::kQ5_K},
    {"q6_k", DType::kQ6_K},
    {"q8_k", {}},
    {"iq2_xxs", {}},
    {"iq2_xs", {}},
    {"iq3_xxs", {}},
    {"iq1_s", {}},
    {"iq4_nl", DType::kIQ4_NL},
    {"iq3_s", {}},
    {"iq2_s", {}},
    {"iq4_xs", DType::kIQ4_XS},
    {"i8", {}},
    {"i16", {}},
    {"i32", {}},
    {"i64", {}},
    {"f64", {}},
    {"iq1_m", {}},
    {"bf16", DType::kBF16},
    {"q4_0_4_4", {}},
    {"q4_0_4_8", {}},
    {"q4_0_8_8", {}},
    {"tq1_0", {}},
    {"tq2_0", {}},
    {"iq4_nl_4_4", {}},
    {"iq4_nl_4_8", {}},
    {"iq4_nl_8_8", {}},
    {"mxfp4", DType::kMXFP4},
};

}  // namespace

GgufTensorType gguf_tensor_type(uint32_t number) {
  return number < std::size(kTypes) ? kTypes[number] : GgufTensorType{"unknown", {}};
}

std::string supported_gguf_types() {
  std::string names;
  for (const GgufTensorType& type : kTypes) {
    if (!type.dtype) continue;
    if (!names.empty()) names += ", ";
    names += type.name;
  }
  return names;
}

}  // namespace droidspeak
