// What /metrics says of caches and of those that they are taken from.
#pragma once

#include "engine/engine.h"
#include "server/prometheus.h"

namespace droidspeak {

void write_store_metrics(PrometheusText& text, const StoreCounters& store);

}  // namespace droidspeak
