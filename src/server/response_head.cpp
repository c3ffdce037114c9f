#include "server/response_head.h"

#include <array>

#include <fmt/format.h>

namespace droidspeak {

namespace {

struct Reason {
  int status;
  const char* text;
};

constexpr std::array kReasons = {
    Reason{200, "OK"},
    Reason{204, "No Content"},
    Reason{304, "Not Modified"},
    Reason{400, "Bad Request"},
    Reason{401, "Unauthorized"},
    Reason{403, "Forbidden"},
    Reason{404, "Not Found"},
    Reason{405, "Method Not Allowed"},
    Reason{408, "Request Timeout"},
    Reason{413, "Content Too Large"},
    Reason{414, "URI Too Long"},
    Reason{415, "Unsupported Media Type"},
    Reason{417, "Expectation Failed"},
    Reason{421, "Misdirected Request"},
    Reason{422, "Unprocessable Content"},
    Reason{429, "Too Many Requests"},
    Reason{431, "Request Header Fields Too Large"},
    Reason{500, "Internal Server Error"},
    Reason{501, "Not Implemented"},
    Reason{503, "Service Unavailable"},
    Reason{505, "HTTP Version Not Supported"},
};

// Clients go by the number alone.
const char* reason_phrase(int status) {
  for (const Reason& reason : kReasons) {
    if (reason.status == status) return reason.text;
  }
  return "Status";
}

}  // namespace

std::string response_head(const HttpResponse& response, const ResponseFraming& framing) {
  std::string head =
      fmt::format("HTTP/1.1 {} {}\r\n", response.status, reason_phrase(response.status));
  bool has_content = response.status != 204 && response.status != 304;
  if (has_content) head += "Content-Type: " + response.content_type + "\r\n";
  if (has_content && framing.body == ResponseFraming::Body::kWhole)
    head += fmt::format("Content-Length: {}\r\n", response.content().size());
  if (framing.body == ResponseFraming::Body::kChunked) head += "Transfer-Encoding: chunked\r\n";
  for (const auto& [name, value] : response.headers) head += name + ": " + value + "\r\n";
  if (framing.connection == ResponseFraming::Connection::kClose) head += "Connection: close\r\n";
  if (framing.connection == ResponseFraming::Connection::kKeepAlive)
    head += "Connection: keep-alive\r\n";
  return head + "\r\n";
}

std::string chunk(std::string_view bytes) {
  return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
}

}  // namespace droidspeak
