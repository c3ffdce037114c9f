// GGUF files for tests.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "formats/gguf.h"

namespace droidspeak {

using GgufEntries = std::vector<std::pair<std::string, GgufValue>>;

// Version 3, tensors in the given order.
void write_gguf(const std::filesystem::path& path,
                const GgufEntries& entries,
                const std::vector<FileTensor>& tensors);

}  // namespace droidspeak
