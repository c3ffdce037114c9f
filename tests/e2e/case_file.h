// Text files with requests and what must come back.
//
//   # a comment
//   > POST /v1/completions          verb and path; more "> " lines are headers
//   {"model": "base"}               the body, up to the "< " line
//   < 200                           status; more "< " lines are headers that must be there
//   {"choices": [{"index": 0}]}     JSON that must be part of the body; or, for a stream,
//   event {"choices": []}           one line per event: JSON that must be part of it, or text
//
// Several exchanges in a file are separated by lines of "---". Expected JSON: objects may have more
// members than listed, arrays have exactly the listed elements; "<any>", "<string>", "<text>" (a
// non-empty string),
// "<number>" stand for values of their kind. "event ..." stands for any number of further events.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "e2e/http_client.h"

namespace droidspeak {

struct CaseExchange {
  int line = 0;
  ClientRequest request;
  int status = 0;
  std::vector<std::string> headers;
  std::string json;                 // empty: any body
  std::vector<std::string> events;  // in order
};

std::vector<CaseExchange> read_case_file(const std::filesystem::path& path);

// Empty when `response` is as expected, else what is wrong.
std::string describe_difference(const CaseExchange& expected, const ClientResponse& response);

}  // namespace droidspeak
