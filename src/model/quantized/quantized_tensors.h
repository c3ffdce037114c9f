// The tensors of a Hugging Face folder with quantised weights: those of one linear layer appear as
// one matrix "<module>.weight", which is decoded when it is read, those of experts in MXFP4 as one
// for each, the others as they are.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "formats/safetensors.h"
#include "model/quantized/quantization_config.h"

namespace droidspeak {

class QuantizedTensors {
 public:
  // `folder` outlives it. Throws Failure naming the folder and the tensor that is missing or wrong.
  QuantizedTensors(const SafetensorsFolder& folder, const QuantizationConfig& config);

  const QuantizationConfig& config() const { return config_; }

  // Null when it is neither a decoded matrix nor a tensor of the folder.
  const FileTensor* find_tensor(std::string_view name) const;

  const std::vector<std::unique_ptr<const FileTensor>>& matrices() const { return matrices_; }

  // Whether a tensor of the folder is part of a matrix, or scales the activations it is given.
  bool is_part(const std::string& name) const { return parts_.contains(name); }

 private:
  // By name.
  struct Parts {
    std::unordered_map<std::string_view, const OtherTensor*> others;
    std::unordered_map<std::string_view, const FileTensor*> floats;
  };

  void add_matrix(const Parts& parts, const OtherTensor& codes, const std::string& module);
  // All experts of a layer, "<parameter>[0]" and so on.
  void add_experts(const Parts& parts, const OtherTensor& blocks, const std::string& parameter);

  const SafetensorsFolder& folder_;
  QuantizationConfig config_;
  std::vector<std::unique_ptr<const FileTensor>> matrices_;
  std::unordered_map<std::string, const FileTensor*> by_name_;
  std::unordered_set<std::string> parts_;
};

}  // namespace droidspeak
