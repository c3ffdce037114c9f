// What goes into a request's stream, and when it ends.
#pragma once

#include <vector>

#include "engine/metrics_board.h"
#include "engine/sequence.h"

namespace droidspeak {

// The prompt is read up to its end; `tokens` are what was sampled after it or after the last
// generated token (nothing: none was asked for). Pushes what the reader gets; true when the request
// is finished, maybe before the last of them.
bool answer(Sequence& sequence, std::vector<SampledToken> tokens, MetricsBoard& metrics);

// Ends the stream early.
void abandon(Sequence& sequence, const Error& error, MetricsBoard& metrics);

}  // namespace droidspeak
