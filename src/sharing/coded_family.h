// What the store's codec needs to know of a family.
#pragma once

#include <filesystem>
#include <vector>

#include "model/family.h"
#include "store/cache_store.h"
#include "store/coded_model.h"

namespace droidspeak {

// For a store of these options and layout: where nothing is coded, "codec_steps" is not read.
CodedModel coded_model_of(const ModelFamily& family, const StoreOptions& options);

// family.json's "codec_steps": of every channel, in eighths of an octave, how much coarser it is
// coded than usual. Throws Failure when the file does not fit the model.
std::vector<float> read_step_factors(const std::filesystem::path& path, const ModelConfig& config);

// Layers with another RoPE than most, or none, are coded as they are.
KeyRotation key_rotation_of(const ModelConfig& config, int32_t max_positions);

}  // namespace droidspeak
