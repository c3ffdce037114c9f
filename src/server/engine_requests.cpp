#include "server/engine_requests.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "server/keys.h"
#include "server/openai/limits.h"

namespace droidspeak {

namespace {

ApiError too_long(int32_t max_model_len,
                  size_t prompt_tokens,
                  int32_t max_tokens,
                  const char* param) {
  return bad_field(
      fmt::format(
          "This model's maximum context length is {} tokens. However, you requested {} tokens ({} "
          "in "
          "the {}, {} in the completion). Please reduce the length of the {} or completion.",
          max_model_len, prompt_tokens + static_cast<size_t>(max_tokens), prompt_tokens, param,
          max_tokens, param),
      param, "context_length_exceeded");
}

ApiError unknown_token(int32_t token, int32_t vocab_size, const char* param) {
  return bad_field(fmt::format("Invalid '{}': token id {} is beyond the vocabulary of {}.", param,
                               token, vocab_size),
                   param);
}

std::optional<ApiError> check_tokens(const Service& service,
                                     const std::vector<int32_t>& tokens,
                                     const char* param) {
  auto beyond =
      std::ranges::find_if(tokens, [&](int32_t token) { return token >= service.vocab_size(); });
  if (beyond == tokens.end()) return std::nullopt;
  return unknown_token(*beyond, service.vocab_size(), param);
}

std::optional<ApiError> check_fields(const Service& service,
                                     const openai::GenerationFields& fields) {
  if (auto error = check_tokens(service, fields.stop_token_ids, "stop_token_ids")) return error;
  const auto& bias = *fields.sampling.logit_bias;
  if (!bias.empty() && bias.rbegin()->first >= service.vocab_size()) {
    return unknown_token(bias.rbegin()->first, service.vocab_size(), "logit_bias");
  }
  return std::nullopt;
}

// How many tokens may be made after this prompt, or why none.
ApiResult<int32_t> completion_room(const Service& service,
                                   const openai::GenerationFields& fields,
                                   size_t prompt_tokens,
                                   const char* param) {
  int32_t limit = service.max_model_len();
  if (prompt_tokens == 0)
    return bad_field(fmt::format("Invalid '{}': it has no tokens.", param), param);
  if (prompt_tokens > static_cast<size_t>(limit)) {
    return too_long(limit, prompt_tokens, fields.max_tokens.value_or(1), param);
  }
  int32_t room = limit - static_cast<int32_t>(prompt_tokens);
  int32_t wanted = fields.max_tokens.value_or(std::max(room, 1));
  if (wanted > room) return too_long(limit, prompt_tokens, wanted, param);
  return wanted;
}

// Values of logprobs: each scored token's alternatives, and the token itself.
size_t num_values_per_token(const GenerationRequest& request) {
  int32_t alternatives = request.wants_prompt_logprobs
                             ? std::max(request.num_top_logprobs, request.num_prompt_alternatives)
                             : request.num_top_logprobs;
  return static_cast<size_t>(std::max(alternatives, 0)) + 1;
}

// What may be kept until a whole answer is written.
size_t num_logprob_values(const std::vector<GenerationRequest>& requests, int32_t num_choices) {
  size_t tokens = 0;
  for (const GenerationRequest& request : requests) {
    bool scores_prompt = request.wants_prompt_logprobs;
    bool scores_answer = request.num_top_logprobs >= 0;
    tokens += (scores_prompt ? request.prompt->size() : 0) +
              (scores_answer ? static_cast<size_t>(request.max_tokens) : 0);
  }
  return tokens * num_values_per_token(requests.front()) * static_cast<size_t>(num_choices);
}

// An answer whose length the client left open ends where the limit for logprobs does.
int32_t bounded_by_logprobs(const GenerationRequest& request, int32_t num_choices) {
  size_t per_token = num_values_per_token(request) * static_cast<size_t>(num_choices);
  return std::min(request.max_tokens, static_cast<int32_t>(openai::kMaxLogprobValues / per_token));
}

std::optional<ApiError> check_logprobs(const std::vector<GenerationRequest>& requests,
                                       int32_t num_choices) {
  size_t values = num_logprob_values(requests, num_choices);
  if (values <= openai::kMaxLogprobValues) return std::nullopt;
  return bad_field(
      fmt::format("Invalid 'logprobs': {} values for all tokens of all choices; expected at most "
                  "{}. Please reduce max_tokens, n, the prompts or the number of alternatives.",
                  values, openai::kMaxLogprobValues),
      "logprobs");
}

GenerationRequest common_request(const Service& service,
                                 const openai::GenerationFields& fields,
                                 const EngineRequestOptions& options) {
  GenerationRequest request;
  request.model = options.variant->name;
  request.variant = options.variant;
  request.sampling = fields.sampling;
  std::set<int32_t> stop_tokens(fields.stop_token_ids.begin(), fields.stop_token_ids.end());
  if (!fields.ignores_end_tokens) {
    const std::vector<int32_t>& ends = service.tokenizer().end_of_turn_ids;
    stop_tokens.insert(ends.begin(), ends.end());
  }
  request.stop_tokens = std::move(stop_tokens);
  request.min_tokens = fields.min_tokens;
  request.num_prompt_alternatives = fields.prompt_logprobs.value_or(0);
  request.num_top_logprobs = options.num_top_logprobs;
  request.wants_prompt_logprobs = options.wants_prompt_logprobs || fields.prompt_logprobs;
  request.wants_embedding = options.wants_embedding;
  request.cache_salt = tenant_salt(options.tenant, fields.cache_salt);
  request.tenant = options.tenant;
  request.priority = fields.priority;
  request.sharing = fields.sharing;
  if (auto sender = service.find_model(fields.sharing.sender)) {
    request.sharing.sender = sender->variant->name;
    request.sharing.from = sender->variant;
  }
  request.ttft_slo_ms = fields.ttft_slo_ms;
  request.min_quality = fields.min_quality;
  return request;
}

std::optional<ApiError> take(Budget& budget,
                             size_t amount,
                             const char* what,
                             HttpRequest& request) {
  auto share = std::make_shared<Budget::Share>(budget);
  if (!share->take(amount)) {
    return status_error(429, fmt::format("The requests in work hold too many {} together; try "
                                         "again later, or ask for less at a time.",
                                         what));
  }
  request.answer_budget.push_back(std::move(share));
  return std::nullopt;
}

}  // namespace

ApiResult<std::vector<GenerationRequest>> make_engine_requests(
    Service& service, const openai::GenerationFields& fields, EngineRequestOptions options) {
  if (auto error = check_fields(service, fields)) return *error;
  GenerationRequest common = common_request(service, fields, options);
  common.sampling.seed = fields.seed.value_or(service.random_seed());
  std::vector<GenerationRequest> requests;
  for (const Shared<std::vector<int32_t>>& prompt : options.prompts) {
    if (auto error = check_tokens(service, prompt, options.prompt_param)) return *error;
    auto max_tokens = completion_room(service, fields, prompt->size(), options.prompt_param);
    if (!max_tokens) return max_tokens.error();
    GenerationRequest request = common;
    request.prompt = prompt;
    request.max_tokens = *max_tokens;
    if (!fields.max_tokens && request.num_top_logprobs >= 0)
      request.max_tokens = bounded_by_logprobs(request, fields.num_choices);
    if (request.max_tokens == 0 && !request.wants_embedding) request.wants_prompt_logprobs = true;
    if (fields.min_tokens > request.max_tokens) {
      return bad_field(fmt::format("Invalid 'min_tokens': {} tokens; expected at most {}, which is "
                                   "what the answer may have.",
                                   fields.min_tokens, request.max_tokens),
                       "min_tokens", "integer_above_max_value");
    }
    requests.push_back(std::move(request));
  }
  if (auto error = check_logprobs(requests, fields.num_choices)) return *error;
  return requests;
}

std::optional<ApiError> reserve_memory(Service& service,
                                       const std::vector<GenerationRequest>& requests,
                                       const openai::GenerationFields& fields,
                                       HttpRequest& request) {
  int32_t num_choices = fields.num_choices;
  size_t tokens = fields.kept_bytes / openai::kBytesPerToken;
  tokens += requests.size() * static_cast<size_t>(num_choices) * openai::kChoiceTokens;
  for (const GenerationRequest& one : requests) tokens += one.prompt->size();
  if (auto error = take(service.prompt_budget(), tokens, "prompts and choices", request))
    return error;
  size_t values = num_logprob_values(requests, num_choices);
  return take(service.logprob_budget(), values, "logprobs", request);
}

std::optional<ApiError> reserve_answer(Service& service, size_t bytes, HttpRequest& request) {
  return take(service.prompt_budget(), bytes / openai::kBytesPerToken, "answers", request);
}

std::optional<ApiError> add_grammar(Service& service,
                                    openai::GenerationFields& fields,
                                    std::vector<GenerationRequest>& requests,
                                    const HttpRequest& request) {
  if (!fields.output_format) return std::nullopt;
  auto grammar = service.compile(*fields.output_format, fields.output_param, request);
  if (!grammar) return grammar.error();
  for (GenerationRequest& one : requests) one.grammar = *grammar;
  fields.output_format.reset();  // it may be large, and an answer takes long
  return std::nullopt;
}

std::shared_ptr<Generation> make_generation(Service& service,
                                            const openai::GenerationFields& fields,
                                            std::vector<GenerationRequest> requests) {
  ChoiceOptions options;
  options.num_per_prompt = fields.num_choices;
  options.stop = fields.stop;
  options.min_tokens = fields.min_tokens;
  options.special = fields.skips_special_tokens ? SpecialTokens::kParse : SpecialTokens::kAsText;
  auto submit = [&engine = service.engine()](GenerationRequest request) {
    return engine.submit(std::move(request));
  };
  return std::make_shared<Generation>(submit, service.tokenizer(), std::move(requests), options);
}

}  // namespace droidspeak
