// The values of JSON Schema's `format` that are held, as regular expressions of texts that every
// validator takes: a date has no 29th day, a URI is one of the web.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace droidspeak {

std::optional<std::string> find_format(std::string_view name);

// "date, date-time, ...".
std::string known_formats();

}  // namespace droidspeak
