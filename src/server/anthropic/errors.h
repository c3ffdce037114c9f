// Errors as Anthropic's clients expect them.
#pragma once

#include <string>

#include "server/api_error.h"

namespace droidspeak::anthropic {

// {"type": "error", "error": {"type", "message"}}
std::string error_body(const ApiError& error);
HttpResponse error_response(const ApiError& error);

}  // namespace droidspeak::anthropic
