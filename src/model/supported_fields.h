// What config.json and GGUF files may say about a model besides what their readers use: fields of
// other meaning are refused by name, never ignored.
#pragma once

#include <string_view>

#include "formats/gguf.h"
#include "model/architectures/architecture.h"
#include "model/json_fields.h"

namespace droidspeak {

// config.json is full of fields that change nothing here: those that are known to change an answer
// must have the value that does not.
void refuse_other_fields(const JsonFields& json, const Architecture& architecture);

// A GGUF file's own keys (under `prefix`) are few: only those that are known may be there.
void refuse_other_keys(const GgufFile& file,
                       std::string_view prefix,
                       const Architecture& architecture);

}  // namespace droidspeak
