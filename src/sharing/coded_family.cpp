#include "sharing/coded_family.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "codec/learn_tables.h"
#include "model/json_fields.h"
#include "model/rope.h"

namespace droidspeak {
namespace {

constexpr int64_t kMostEighths = 40;  // of an octave
static_assert(kMostStepFactor == 1 << kMostEighths / 8 && kLeastStepFactor * kMostStepFactor == 1);

}  // namespace

CodedModel coded_model_of(const ModelFamily& family, const StoreOptions& options) {
  auto base = family.base();
  CodedModel model{base->model_digest,
                   key_rotation_of(family.config(), base->transformer->max_positions())};
  const std::filesystem::path& steps = family.file().codec_steps;
  if (may_be_coded(options) && !steps.empty())
    model.step_factors = read_step_factors(steps, family.config());
  return model;
}

std::vector<float> read_step_factors(const std::filesystem::path& path, const ModelConfig& config) {
  JsonFields json(path);
  json.accept_only({"layers"});
  std::vector<JsonFields> layers = json.get_objects("layers");
  if (layers.size() != static_cast<size_t>(config.num_layers))
    json.refuse("layers", fmt::format("{} of them", config.num_layers));
  auto channels = static_cast<size_t>(config.kv_columns());
  std::vector<float> factors;
  for (const JsonFields& layer : layers) {
    layer.accept_only({"keys", "values"});
    for (const char* half : {"keys", "values"}) {
      std::vector<int64_t> eighths = layer.get_ints(half, -kMostEighths, kMostEighths);
      if (eighths.size() != channels) layer.refuse(half, fmt::format("{} numbers", channels));
      for (int64_t of_channel : eighths)
        factors.push_back(static_cast<float>(std::exp2(static_cast<double>(of_channel) / 8)));
    }
  }
  return factors;
}

KeyRotation key_rotation_of(const ModelConfig& config, int32_t max_positions) {
  std::vector<std::vector<float>> of_layers;  // nothing where K is not rotated
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    of_layers.emplace_back();
    if (config.is_rotated(layer))
      of_layers.back() = rotation_of(config.rope_of(layer), max_positions).frequencies;
  }
  KeyRotation rotation{rotation_of(config.rope, max_positions).frequencies, {}};
  auto num_with = [&](const auto& frequencies) {
    return std::ranges::count(of_layers, frequencies);
  };
  for (const std::vector<float>& frequencies : of_layers) {
    if (!frequencies.empty() && num_with(frequencies) > num_with(rotation.frequencies))
      rotation.frequencies = frequencies;
  }
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    if (of_layers[static_cast<size_t>(layer)] != rotation.frequencies)
      rotation.unturned_layers.push_back(layer);
  }
  return rotation;
}

}  // namespace droidspeak
