// Reads a request's body off a connection: by Content-Length or chunked, within a size and a time
// limit that hold for the body as a whole, and within a budget that all connections share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "server/connection.h"
#include "server/request_head.h"

namespace droidspeak {

// Bytes that bodies may take together, from when they are read until they have been parsed.
class BodyBudget {
 public:
  explicit BodyBudget(size_t max_bytes) : max_bytes_(max_bytes) {}

  bool take(size_t bytes) {
    if ((used_ += bytes) <= max_bytes_) return true;
    used_ -= bytes;
    return false;
  }

  void give_back(size_t bytes) { used_ -= bytes; }

  size_t used() const { return used_; }

 private:
  const size_t max_bytes_;
  std::atomic<size_t> used_ = 0;
};

struct BodyLimits {
  size_t max_bytes = 0;
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
               BodyBudget& budget);

}  // namespace droidspeak
