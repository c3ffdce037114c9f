// What "quantization_config" of a config.json says about how weights lie in the file. Weights are
// read as they are meant. Rounding of activations, which some schemes ask for, is noted where both
// sides are 8-bit floats (DType::kFp8), which devices may multiply as they are; otherwise
// activations are computed in the engine's own precision. Whatever else such an object says and is
// not done is refused by name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace droidspeak {

class JsonFields;

struct QuantizationConfig {
  enum class Layout {
    kGptq,    // "qweight" packed along columns, "qzeros", "scales", perhaps "g_idx"
    kAwq,     // "qweight" packed along rows in AWQ's order, "qzeros", "scales"
    kPacked,  // "weight_packed", "weight_scale", "weight_shape", perhaps zero points and "g_idx"
    kBytes,   // "weight" of int8 or 8-bit floats and a tensor of scales
    kMxfp4,   // "*_blocks" and "*_scales" of all experts (quantized/mxfp4_experts.h)
  };
  enum class Code { kInteger, kFloat };
  enum class Zero { kMiddle, kStored };

  // So many rows and columns have one scale; 0: all of them.
  struct ScaleBlock {
    int64_t rows = 1;
    int64_t columns = 0;

    bool operator==(const ScaleBlock&) const = default;
  };

  std::string method;  // "gptq"
  Layout layout = Layout::kGptq;
  Code code = Code::kInteger;
  int32_t bits = 4;
  Zero zero = Zero::kStored;
  int32_t zero_offset = 0;  // what to add to stored zero points
  ScaleBlock scale_block = {};
  bool may_scale_rows = false;     // one scale for everything, or else one for each row
  bool needs_group_index = false;  // columns are not in the order of their groups
  bool has_whole_groups = false;   // the last one is not cut off, as it may be elsewhere
  bool rounds_input = false;       // activations are to be 8-bit floats, each row by its scale
  std::string_view scale_suffix = "weight_scale";
  std::string_view other_scale_suffix = {};  // where there is none of that name

  bool operator==(const QuantizationConfig&) const = default;

  // Everything that changes what the tensors mean, for digests.
  std::string describe() const;
};

// `json` is that object. Throws Failure naming file, field and value.
QuantizationConfig read_quantization_config(const JsonFields& json);

// One line a method, for the page of supported models.
std::string supported_quantizations();

}  // namespace droidspeak
