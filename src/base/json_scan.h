// What a JSON text holds, seen without building it. Files and requests of strangers are looked at
// this way first: a parser builds before one can object, and nlohmann's takes quadratic time when
// it asks a callback about each value.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace droidspeak {

struct JsonLimits {
  int depth = 64;  // functions over values call themselves
  size_t values = std::numeric_limits<size_t>::max();
  size_t keys = std::numeric_limits<size_t>::max();  // of all objects
};

// The limit that `text` is over ("is nested deeper than 64 levels"), or that it has a zero byte
// between values, found in one pass. Says nothing else about whether the text is JSON.
std::optional<std::string> find_json_excess(std::string_view text, const JsonLimits& limits);

// Calls `see` with each key and the number of objects and arrays around it, in the text's order, up
// to where the text is no JSON.
void for_each_json_key(std::string_view text,
                       const std::function<void(int depth, const std::string& key)>& see);

}  // namespace droidspeak
