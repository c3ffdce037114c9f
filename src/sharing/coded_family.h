// What the store's codec needs to know of a family.
#pragma once

#include <filesystem>
#include <vector>

#include "model/family.h"
#include "store/coded_model.h"

namespace droidspeak {

CodedModel coded_model_of(const ModelFamily& family);

// family.json's "codec_steps": of every channel, in eighths of an octave, how much coarser it is
// coded than usual. Throws Failure when the file does not fit the model.
std::vector<float> read_step_factors(const std::filesystem::path& path, const ModelConfig& config);

// Layers with another RoPE than most, or none, are coded as they are.
KeyRotation key_rotation_of(const ModelConfig& config, int32_t max_positions);

}  // namespace droidspeak
