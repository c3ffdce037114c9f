// Experts of a layer in MXFP4 as Hugging Face files hold them: "<parameter>_blocks" [experts, rows,
// columns / 32, 16], two codes a byte side by side, and "<parameter>_scales" [experts, rows,
// columns / 32], powers of two.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "formats/safetensors.h"

namespace droidspeak {

// "<parameter>[i]" for every expert i: [rows, columns] in the block format of GGUF files, made when
// it is read. Throws Failure naming `path` and the tensor.
std::vector<FileTensor> mxfp4_experts(const std::filesystem::path& path,
                                      const std::string& parameter,
                                      const OtherTensor& blocks,
                                      const OtherTensor& scales);

}  // namespace droidspeak
