// The part of /v1/droidspeak/state that tells of caches.
#pragma once

#include "engine/engine.h"
#include "server/json_writer.h"

namespace droidspeak {

// {"tiers", "misses", "damaged", "write_errors"}
void write_caches(JsonWriter& json, const StoreCounters& store);

}  // namespace droidspeak
