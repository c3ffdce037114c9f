// Reads a request's body off a connection: by Content-Length or chunked, within a size and a time
// limit that hold for the body as a whole.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>

#include "server/connection.h"

namespace droidspeak {

// How the head says the body is sent.
struct BodyFraming {
  enum class Kind { kNone, kLength, kChunked, kInvalid } kind = Kind::kNone;
  size_t length = 0;    // kLength
  std::string problem;  // kInvalid
};

// Values of the two headers, empty when absent. Repeated headers are given joined by commas.
BodyFraming body_framing(const std::string& content_length, const std::string& transfer_encoding);

struct BodyLimits {
  size_t max_bytes = 0;
  std::chrono::milliseconds timeout{10000};
  size_t max_total_bytes = 0;  // of all bodies that are being read at the same time
};

// Status 200 with the text, or the status to refuse the request with.
struct Body {
  int status = 200;
  std::string text;
  std::string problem;
};

// `total_bytes` counts what all connections are reading; the caller takes the text's size off it
// when done.
Body read_body(Connection& connection,
               const BodyFraming& framing,
               const BodyLimits& limits,
               std::atomic<size_t>& total_bytes);

}  // namespace droidspeak
