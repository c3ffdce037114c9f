// Folders that nobody but their owner may enter: what lies in a cache is somebody's text.
#pragma once

#include <filesystem>

#include "base/result.h"

namespace droidspeak {

// Makes a folder of mode 0700, whatever the umask. One that is there already stays as it is.
Result<void> make_private_folder(const std::filesystem::path& folder);

// Narrows a cache folder and its sub folders to 0700, and logs that. A folder that others may enter
// throws Failure when it is not ours to narrow, or holds other things, which others may need. One
// that we cannot write to is left alone: nothing of ours will lie in it.
void narrow_cache_folder(const std::filesystem::path& folder);

}  // namespace droidspeak
