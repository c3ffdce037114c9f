#include "model/quantized/quantized_tensors.h"

#include <optional>

#include <fmt/format.h>

#include "base/error.h"
#include "formats/byte_reader.h"
#include "model/quantized/mxfp4_experts.h"
#include "model/quantized/quantized_matrix.h"

namespace droidspeak {
namespace {

using Layout = QuantizationConfig::Layout;

// How tensors of a linear layer are called behind its name.
struct Suffixes {
  std::string_view codes;
  std::string_view scales;
  std::string_view zeros;
  std::string_view group_index;
};

Suffixes suffixes_of(const QuantizationConfig& config) {
  switch (config.layout) {
    case Layout::kGptq:
      return {"qweight", "scales", "qzeros", "g_idx"};
    case Layout::kAwq:
      return {"qweight", "scales", "qzeros", ""};
    case Layout::kPacked:
      return {"weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx"};
    case Layout::kBytes:
      return {"weight", config.scale_suffix, "weight_zero_point", ""};
    case Layout::kMxfp4:
      return {"blocks", "scales", "", ""};
  }
  return {};
}

// Activations keep their precision.
constexpr std::string_view kActivationScales[] = {"activation_scale", "input_scale",
                                                  "input_scale_ub", "input_zero_point"};

}  // namespace

QuantizedTensors::QuantizedTensors(const SafetensorsFolder& folder,
                                   const QuantizationConfig& config)
    : folder_(folder), config_(config) {
  Parts parts;
  for (const SafetensorsFile& file : folder.files()) {
    for (const OtherTensor& tensor : file.others()) parts.others.emplace(tensor.name, &tensor);
    for (const FileTensor& tensor : file.tensors()) parts.floats.emplace(tensor.name, &tensor);
  }
  const bool are_experts = config.layout == Layout::kMxfp4;
  const std::string ending =
      fmt::format("{}{}", are_experts ? '_' : '.', suffixes_of(config).codes);
  for (const SafetensorsFile& file : folder.files()) {
    for (const OtherTensor& tensor : file.others()) {
      if (!tensor.name.ends_with(ending)) continue;
      const std::string owner = tensor.name.substr(0, tensor.name.size() - ending.size());
      if (are_experts) {
        add_experts(parts, tensor, owner);
      } else {
        add_matrix(parts, tensor, owner);
      }
    }
  }
  if (matrices_.empty()) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: no tensor \"*{}\" is quantised though config.json says {}",
                              folder.path().string(), ending, config.method));
  }
}

void QuantizedTensors::add_matrix(const Parts& parts,
                                  const OtherTensor& codes,
                                  const std::string& module) {
  const Suffixes suffixes = suffixes_of(config_);
  auto find_other = [&](std::string_view suffix) -> std::optional<OtherTensor> {
    const std::string name = fmt::format("{}.{}", module, suffix);
    auto found = parts.others.find(name);
    if (suffix.empty() || found == parts.others.end()) return std::nullopt;
    parts_.insert(name);
    return *found->second;
  };
  auto refuse_missing = [&](std::string_view suffix) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: tensor {} is missing, or of another type than {} has",
                              folder_.path().string(),
                              in_quotes(fmt::format("{}.{}", module, suffix)), config_.method));
  };
  std::string scales_name = fmt::format("{}.{}", module, suffixes.scales);
  auto scales = parts.floats.find(scales_name);
  if (scales == parts.floats.end() && !config_.other_scale_suffix.empty()) {
    scales_name = fmt::format("{}.{}", module, config_.other_scale_suffix);
    scales = parts.floats.find(scales_name);
  }
  if (scales == parts.floats.end()) refuse_missing(suffixes.scales);
  parts_.insert(codes.name);
  parts_.insert(scales_name);
  for (std::string_view suffix : kActivationScales)
    parts_.insert(fmt::format("{}.{}", module, suffix));
  QuantizedParts found{
      .module = module,
      .codes = codes,
      .scales = *scales->second,
      .zeros = find_other(suffixes.zeros),
      .group_index = find_other(suffixes.group_index),
      .shape = config_.layout == Layout::kPacked ? find_other("weight_shape") : std::nullopt};
  if (config_.layout == Layout::kPacked && !found.shape) refuse_missing("weight_shape");
  auto matrix = std::make_shared<const QuantizedMatrix>(folder_.path(), config_, std::move(found));
  const uint64_t bytes = bytes_of(matrix->dtype(), matrix->rows() * matrix->columns());
  matrices_.push_back(std::make_unique<const FileTensor>(
      FileTensor{fmt::format("{}.weight", module),
                 matrix->dtype(),
                 {matrix->rows(), matrix->columns()},
                 {bytes, [matrix](std::vector<std::byte>& out) { matrix->read(out); }}}));
  by_name_.emplace(matrices_.back()->name, matrices_.back().get());
}

void QuantizedTensors::add_experts(const Parts& parts,
                                   const OtherTensor& blocks,
                                   const std::string& parameter) {
  const std::string scales_name = parameter + "_scales";
  auto scales = parts.others.find(scales_name);
  if (scales == parts.others.end()) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: tensor {} is missing, or of another type than {} has",
                              folder_.path().string(), in_quotes(scales_name), config_.method));
  }
  parts_.insert(blocks.name);
  parts_.insert(scales_name);
  for (FileTensor& expert : mxfp4_experts(folder_.path(), parameter, blocks, *scales->second)) {
    matrices_.push_back(std::make_unique<const FileTensor>(std::move(expert)));
    by_name_.emplace(matrices_.back()->name, matrices_.back().get());
  }
}

const FileTensor* QuantizedTensors::find_tensor(std::string_view name) const {
  if (auto found = by_name_.find(std::string(name)); found != by_name_.end()) return found->second;
  return folder_.find_tensor(name);
}

}  // namespace droidspeak
