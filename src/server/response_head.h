// The first lines of an answer, and the framing of a streamed one.
#pragma once

#include <string>
#include <string_view>

#include "server/http.h"

namespace droidspeak {

struct ResponseFraming {
  enum class Body {
    kWhole,       // with its length
    kChunked,     // streamed
    kUntilClose,  // streamed to a client that does not know chunks
  } body = Body::kWhole;
  // What the answer says of the connection; kUnsaid is what HTTP/1.1 takes for granted.
  enum class Connection { kUnsaid, kKeepAlive, kClose } connection = Connection::kUnsaid;
};

// Ends with the empty line.
std::string response_head(const HttpResponse& response, const ResponseFraming& framing);

// One chunk; `bytes` is not empty, for that is the end.
std::string chunk(std::string_view bytes);
constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace droidspeak
