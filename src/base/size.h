// Byte sizes as people write them: "512MiB", "4GiB", "1048576".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace droidspeak {

// Throws Failure naming the text. Units KiB, MiB, GiB, TiB (and K, M, G, T as the same).
uint64_t parse_size(std::string_view text);
std::string format_size(uint64_t bytes);

}  // namespace droidspeak
