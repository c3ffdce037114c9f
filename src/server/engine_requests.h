// From a validated API request and its prompts to engine requests, one per prompt.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/shared.h"
#include "engine/request.h"
#include "server/api_error.h"
#include "server/generation.h"
#include "server/openai/requests.h"
#include "server/service.h"

namespace droidspeak {

struct EngineRequestOptions {
  std::shared_ptr<const Variant> variant;
  std::string tenant;  // the caller's
  std::vector<Shared<std::vector<int32_t>>> prompts;
  const char* prompt_param = "prompt";  // named when a prompt is too long
  int32_t num_top_logprobs = -1;
  bool wants_prompt_logprobs = false;
  bool wants_embedding = false;
};

// 400 for prompts beyond the context, token ids beyond the vocabulary, and more tokens or logprobs
// in all than one request may ask for.
ApiResult<std::vector<GenerationRequest>> make_engine_requests(
    Service& service, const openai::GenerationFields& fields, EngineRequestOptions options);

// Takes what these requests will hold from the budgets that all requests share, until `request` has
// been answered; 429 when others hold too much.
std::optional<ApiError> reserve_memory(Service& service,
                                       const std::vector<GenerationRequest>& requests,
                                       const openai::GenerationFields& fields,
                                       HttpRequest& request);

// The same for an answer that is there and waits to be taken by its client.
std::optional<ApiError> reserve_answer(Service& service, size_t bytes, HttpRequest& request);

// Compiles what the answers must look like, which takes longest: after all that may refuse the
// request, and without a work slot. Takes the format from `fields`.
std::optional<ApiError> add_grammar(Service& service,
                                    openai::GenerationFields& fields,
                                    std::vector<GenerationRequest>& requests,
                                    const HttpRequest& request);

// The generation of all choices of these requests on the service's engine.
std::shared_ptr<Generation> make_generation(Service& service,
                                            const openai::GenerationFields& fields,
                                            std::vector<GenerationRequest> requests);

}  // namespace droidspeak
