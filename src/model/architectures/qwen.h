// What the files of Qwen models have in common.
#pragma once

#include "model/architectures/architecture.h"

namespace droidspeak {

// With "use_sliding_window" the layers from "max_window_layers" on have one.
void read_qwen_windows(const JsonFields& json, ModelConfig& config);

}  // namespace droidspeak
