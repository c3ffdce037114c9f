// From a validated API request and its prompts to engine requests, one per prompt.
#pragma once

#include <string>
#include <vector>

#include "engine/request.h"
#include "server/api_error.h"
#include "server/generation.h"
#include "server/openai/requests.h"
#include "server/service.h"

namespace droidspeak {

struct EngineRequestOptions {
  std::string variant;
  std::string tenant;  // the caller's
  std::vector<std::vector<int32_t>> prompts;
  const char* prompt_param = "prompt";  // named when a prompt is too long
  int32_t num_top_logprobs = -1;
  bool wants_prompt_logprobs = false;
};

// 400 for prompts beyond the context, token ids beyond the vocabulary, and more tokens or logprobs
// in all than one request may ask for.
ApiResult<std::vector<GenerationRequest>> make_engine_requests(
    Service& service, const openai::GenerationFields& fields, EngineRequestOptions options);

// The generation of all choices of these requests on the service's engine.
std::shared_ptr<Generation> make_generation(Service& service,
                                            const openai::GenerationFields& fields,
                                            std::vector<GenerationRequest> requests);

}  // namespace droidspeak
