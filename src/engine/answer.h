// What goes into a request's stream, and when it ends.
#pragma once

#include <optional>

#include "engine/metrics_board.h"
#include "engine/sequence.h"

namespace droidspeak {

// The prompt is read up to its end; `token` is what was sampled after it or after the last
// generated token (nothing: none was asked for). Pushes what the reader gets; true when the request
// is finished.
bool answer(Sequence& sequence, std::optional<SampledToken> token, MetricsBoard& metrics);

// Ends the stream early.
void abandon(Sequence& sequence, const Error& error, MetricsBoard& metrics);

}  // namespace droidspeak
