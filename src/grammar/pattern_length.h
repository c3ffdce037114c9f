// Patterns that are one repeated character, as most are that stand beside a length.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace droidspeak {

// The pattern for those of its texts that have from `low` to `high` characters, where it is one
// class between anchors, as "^[a-z]+$". Nothing for others, and where there is no such text.
std::optional<std::string> with_length(std::string_view pattern, size_t low, size_t high);

}  // namespace droidspeak
