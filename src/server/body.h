// Reads a request's body off a connection: by Content-Length or chunked, within a size and a time
// limit that hold for the body as a whole, and within a budget that all connections share.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "server/budget.h"
#include "server/connection.h"
#include "server/request_head.h"

namespace droidspeak {

struct BodyLimits {
  size_t max_bytes = 0;
  size_t free_bytes = 0;  // so many of each body are not on the budget
  std::chrono::milliseconds timeout{10000};
};

// Status 200 with the text, or the status to refuse the request with.
struct Body {
  int status = 200;
  std::string problem;
  std::string text;
  std::shared_ptr<void> budget;  // gives back what the text takes of it
};

// `budget` outlives the result.
Body read_body(Connection& connection,
               const BodyFraming& framing,
               const BodyLimits& limits,
               Budget& budget);

}  // namespace droidspeak
