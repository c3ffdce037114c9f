// For tests: what becomes of requests with these fields.
#pragma once

#include <string>

#include "server/openai/requests.h"

namespace droidspeak::openai {

inline ApiResult<ChatRequest> read_chat(const std::string& fields) {
  return parse_chat_request(R"({"model":"m","messages":[{"role":"user","content":"x"}],)" + fields +
                            "}");
}

inline ApiResult<CompletionRequest> read_completion(const std::string& fields) {
  return parse_completion_request(R"({"model":"m","prompt":"x",)" + fields + "}");
}

template <class Request>
std::string outcome(const ApiResult<Request>& request) {
  return request ? "taken" : request.error().param + ": " + request.error().code;
}

}  // namespace droidspeak::openai
