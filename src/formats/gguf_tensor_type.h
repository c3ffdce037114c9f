// The numbers by which GGUF files name tensor types.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tensor/dtype.h"

namespace droidspeak {

struct GgufTensorType {
  std::string_view name;       // "iq2_xs"; "unknown" for a number that has none
  std::optional<DType> dtype;  // none: a type we do not read
};

GgufTensorType gguf_tensor_type(uint32_t number);

// Names of the types that are read, with commas.
std::string supported_gguf_types();

}  // namespace droidspeak
