// Bodies of API calls as plain types, validated: ranges, roles and unsupported features are dealt
// with here. What needs the tokenizer or the engine (does the model exist, is the prompt too long)
// is the handlers' part.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/request.h"
#include "grammar/output_format.h"
#include "server/api_error.h"
#include "server/chat/conversation.h"

namespace droidspeak::openai {

// Fields that both completion calls have.
struct GenerationFields {
  std::string model;
  int32_t num_choices = 1;
  std::optional<int32_t> max_tokens;
  SamplingOptions sampling;      // its seed is unused, see below
  std::optional<uint64_t> seed;  // none: a random one
  Shared<std::vector<std::string>> stop;
  std::vector<int32_t> stop_token_ids;
  int32_t min_tokens = 0;
  std::optional<OutputFormat> output_format;  // none: free text
  std::string output_param;                   // the field that says it
  size_t kept_bytes = 0;                      // of the request, which the answer repeats
  std::optional<int32_t> prompt_logprobs;     // alternatives of each token of the prompt
  bool ignores_end_tokens = false;
  bool skips_special_tokens = true;
  bool is_streamed = false;
  bool includes_usage = false;     // one more chunk
  bool has_running_usage = false;  // in every chunk
  std::string cache_salt;          // the client's
  int32_t priority = 0;
  SharingRequest sharing;
  std::optional<double> ttft_slo_ms;
  std::optional<double> min_quality;
};

// What a template makes a prompt of.
struct ChatPrompt {
  std::vector<ChatTurn> messages;
  ToolOffer tools;
  bool adds_generation_prompt = true;
  bool adds_special_tokens = false;
  std::string template_arguments;  // JSON object, keys in the client's order; may be empty
  std::string without_thoughts;    // the field that asks for none; empty: none does
};

struct ChatRequest {
  GenerationFields generation;
  ChatPrompt prompt;
  int32_t num_top_logprobs = -1;  // -1: no logprobs
};

using Prompt = std::variant<std::string, std::vector<int32_t>>;

struct CompletionRequest {
  GenerationFields generation;
  std::vector<Prompt> prompts;  // at least one
  bool adds_special_tokens = true;
  bool is_echoed = false;
  int32_t num_top_logprobs = -1;  // -1: no logprobs
};

struct TokenizeRequest {
  std::string model;  // empty: the base
  std::variant<std::string, ChatPrompt> input;
  bool adds_special_tokens = true;
  bool wants_token_strings = false;
};

struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
};

struct LoadAdapterRequest {
  std::string name;
  std::string path;
  enum class IfTaken { kRefuse, kReplace } if_taken = IfTaken::kRefuse;
};

struct UnloadAdapterRequest {
  std::string name;
};

// Bodies are taken over, and freed as soon as they are parsed: they may be large.
ApiResult<ChatRequest> parse_chat_request(std::string body);
ApiResult<CompletionRequest> parse_completion_request(std::string body);
ApiResult<TokenizeRequest> parse_tokenize_request(std::string body);
ApiResult<DetokenizeRequest> parse_detokenize_request(std::string_view body);
ApiResult<LoadAdapterRequest> parse_load_adapter_request(std::string_view body);
ApiResult<UnloadAdapterRequest> parse_unload_adapter_request(std::string_view body);

}  // namespace droidspeak::openai
