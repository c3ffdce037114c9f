// `prompt_logprobs` of an answer, as vLLM writes them.
#pragma once

#include "server/generation.h"
#include "server/json_writer.h"
#include "server/service.h"

namespace droidspeak {

// [null, {"token id": {"logprob", "rank", "decoded_token"}, ...}, ...]: for each token of the
// choice's prompt itself and `alternatives` others, best first. Nothing is known about the first.
void write_prompt_logprobs(JsonWriter& json,
                           const Service& service,
                           const std::vector<SampledToken>& tokens,
                           int32_t alternatives);

}  // namespace droidspeak
