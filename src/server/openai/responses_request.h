// Bodies of POST /v1/responses, as the chat they mean. Nothing is stored: what would need it is
// refused by name.
#pragma once

#include <string>

#include "server/openai/requests.h"

namespace droidspeak::openai {

struct ResponsesRequest {
  ChatRequest chat;
  // What an answer repeats, as JSON; empty: null.
  std::string instructions;
  std::string metadata;
  std::string text_format;
  std::string tool_choice;
  std::string tools;
  std::string reasoning_effort;
};

ApiResult<ResponsesRequest> parse_responses_request(std::string body);

}  // namespace droidspeak::openai
