// Errors as Anthropic's clients expect them.
#pragma once

#include <string>

#include "server/api_error.h"

namespace droidspeak::anthropic {

// The code by which clients know a server that keeps no conversations.
inline constexpr const char* kNoThreads = "thread_unsupported_request";

// {"type": "error", "error": {"type", "message"}}, and "details" with that code.
std::string error_body(const ApiError& error);
HttpResponse error_response(const ApiError& error);

}  // namespace droidspeak::anthropic
