// Answers to requests whose head is not good enough for the HTTP library to answer.
#pragma once

#include <string>

#include "server/http.h"

namespace droidspeak {

// What is wrong with a head that is refused with `status`.
const char* head_problem(int status);

// The whole answer as bytes; the connection closes after it.
std::string raw_response(const HttpResponse& response);

}  // namespace droidspeak
