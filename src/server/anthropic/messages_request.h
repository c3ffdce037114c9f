// Bodies of Anthropic's POST /v1/messages and /v1/messages/count_tokens, as the chat they mean.
#pragma once

#include <string>

#include "server/openai/requests.h"

namespace droidspeak::anthropic {

ApiResult<openai::ChatRequest> parse_messages_request(std::string body);
// Needs no max_tokens.
ApiResult<openai::ChatRequest> parse_count_request(std::string body);

}  // namespace droidspeak::anthropic
