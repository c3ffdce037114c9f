// RoPE as config.json and GGUF files describe it: one reader for all architectures. What a file
// says and we do not do is refused by name.
#pragma once

#include <string_view>

#include "formats/gguf.h"
#include "model/json_fields.h"
#include "model/model_config.h"

namespace droidspeak {

// Fill in rope, and local_rope where a file has another one for layers with a window; head_dim and
// max_positions are there already.
void read_hf_rope(const JsonFields& json, ModelConfig& config);
// `prefix`: of the file's keys, its "general.architecture".
void read_gguf_rope(const GgufFile& file, std::string_view prefix, ModelConfig& config);

}  // namespace droidspeak
