#include "server/head_refusal.h"

#include <fmt/format.h>

namespace droidspeak {

namespace {

const char* reason_phrase(int status) {
  switch (status) {
    case 408:
      return "Request Timeout";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Bad Request";
  }
}

}  // namespace

std::string raw_response(const HttpResponse& response) {
  std::string head =
      fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n", response.status,
                  reason_phrase(response.status), response.content_type, response.body.size());
  for (const auto& [name, value] : response.headers) head += fmt::format("{}: {}\r\n", name, value);
  return head + "Connection: close\r\n\r\n" + response.body;
}

const char* head_problem(int status) {
  switch (status) {
    case 408:
      return "The head of the request did not arrive in time.";
    case 414:
      return "The request line is too long.";
    case 431:
      return "The head of the request is larger than 64 KiB.";
    case 416:
      return "The Range header cannot be understood.";
    default:
      return "The head of the request is not valid HTTP/1.1.";
  }
}

}  // namespace droidspeak
