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

// Whether a file's time of change tells every write, those of programs that have it mapped, too:
// ext2 to ext4, XFS, Btrfs and F2FS. Not so tmpfs and ramfs; and overlay, FUSE and network file
// systems do not say what lies behind them.
bool tells_every_write(const InputFile& file);

struct DigestMemory {
  std::chrono::system_clock::time_point now = std::chrono::system_clock::now();
  bool (*trusts)(const InputFile& file) = tells_every_write;  // another one in tests
};

// The digest remembered for `files`, or compute() (remembered if the folder can be written).
// Nothing is remembered where a file could change unseen: on file systems that are not trusted, and
// when it was changed just before `now`, as clocks of file systems are coarse.
// Files are written back to the disk first; where that fails nothing is remembered either.
Digest cached_digest(const std::vector<const InputFile*>& files,
                     const std::function<Digest()>& compute,
                     const DigestMemory& memory = {});

}  // namespace droidspeak
