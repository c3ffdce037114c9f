// Digests of weights, remembered beside the file as long as its size and modification time stay.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "base/hash.h"
#include "formats/gguf.h"

namespace droidspeak {

// SHA-256 over name, dtype, shape and bytes of each tensor, in the given order.
Digest digest_of_tensors(const std::vector<const FileTensor*>& tensors);

// The digest remembered for `files`, or compute() (remembered if the folder can be written).
Digest cached_digest(const std::vector<std::filesystem::path>& files,
                     const std::function<Digest()>& compute);

}  // namespace droidspeak
