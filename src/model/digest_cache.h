// Digests of weights, remembered beside the file for as long as its content cannot have changed.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "base/file.h"
#include "base/hash.h"
#include "formats/safetensors.h"

namespace droidspeak {

// SHA-256 over name, dtype, shape and bytes of each tensor, in the given order.
Digest digest_of_tensors(const std::vector<const FileTensor*>& tensors,
                         const std::vector<const OtherTensor*>& others = {});

// The digest remembered for `files`, or compute() (remembered if the folder can be written). A file
// that was changed just before `now` could change again unseen, as clocks of file systems are
// coarse: its digest is not remembered.
Digest cached_digest(const std::vector<const InputFile*>& files,
                     const std::function<Digest()>& compute,
                     std::chrono::system_clock::time_point now = std::chrono::system_clock::now());

}  // namespace droidspeak
