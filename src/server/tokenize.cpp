#include <fmt/format.h>

#include "server/engine_requests.h"
#include "server/handlers.h"
#include "server/json_writer.h"
#include "server/openai/limits.h"
#include "server/read_body.h"

namespace droidspeak {

namespace {

ApiResult<std::vector<int32_t>> encode(const Service& service, openai::TokenizeRequest& request) {
  if (auto* chat = std::get_if<openai::ChatPrompt>(&request.input)) {
    auto encoded = service.encode_chat(std::move(*chat));
    if (!encoded) return encoded.error();
    return std::move(encoded->tokens);
  }
  const std::string& text = std::get<std::string>(request.input);
  return request.adds_special_tokens ? service.encode_prompt(text, "prompt")
                                     : service.encode(text, "prompt");
}

// Counted until the client has taken it: it may be many times as large as what was asked.
HttpResponse answer_counted(Service& service, HttpRequest& request, JsonWriter json) {
  HttpResponse response;
  response.body = std::move(json).take();
  if (auto error = reserve_answer(service, response.body.size(), request))
    return error_response(*error);
  return response;
}

std::optional<ApiError> check_tokens(const Service& service, const std::vector<int32_t>& tokens) {
  size_t bytes = 0;
  for (int32_t token : tokens) {
    if (token >= service.tokenizer().vocab_size()) {
      return bad_field(fmt::format("Invalid 'tokens': token id {} is beyond the vocabulary of {}.",
                                   token, service.tokenizer().vocab_size()),
                       "tokens");
    }
    bytes += service.token_bytes(token).size();
  }
  if (bytes <= openai::kMaxRepeatedBytes) return std::nullopt;
  return bad_field(
      fmt::format("Invalid 'tokens': they stand for {} bytes of text; expected at most "
                  "{}. Send fewer at a time.",
                  bytes, openai::kMaxRepeatedBytes),
      "tokens", "array_above_max_length");
}

void write_token_or_null(JsonWriter& json, const char* name, std::string_view text) {
  json.key(name).text_or_null(text);
}

}  // namespace

HttpResponse tokenize(Service& service, HttpRequest& request) {
  auto body = read_body(service, request, openai::parse_tokenize_request);
  if (!body) return error_response(body.error());
  openai::TokenizeRequest& wanted = body->wanted;
  if (!wanted.model.empty() && !service.find_model(wanted.model)) {
    return error_response(model_not_found(wanted.model));
  }
  ApiResult<std::vector<int32_t>> tokens = encode(service, wanted);
  if (!tokens) return error_response(tokens.error());
  JsonWriter json;
  json.begin_object();
  json.key("count").unsigned_integer(tokens->size());
  json.key("max_model_len").integer(service.max_model_len());
  json.key("tokens").begin_array();
  for (int32_t token : *tokens) json.integer(token);
  json.end_array().key("token_strs");
  if (wanted.wants_token_strings) {
    json.begin_array();
    for (int32_t token : *tokens) json.text(service.token_bytes(token));
    json.end_array();
  } else {
    json.null();
  }
  json.end_object();
  return answer_counted(service, request, std::move(json));
}

HttpResponse detokenize(Service& service, HttpRequest& request) {
  auto body = read_body(service, request, openai::parse_detokenize_request);
  if (!body) return error_response(body.error());
  const openai::DetokenizeRequest& wanted = body->wanted;
  if (!wanted.model.empty() && !service.find_model(wanted.model)) {
    return error_response(model_not_found(wanted.model));
  }
  if (auto error = check_tokens(service, wanted.tokens)) return error_response(*error);
  JsonWriter json;
  json.begin_object();
  json.key("prompt").text(service.tokenizer().decode(wanted.tokens, SpecialTokens::kAsText));
  json.end_object();
  return answer_counted(service, request, std::move(json));
}

HttpResponse tokenizer_info(Service& service, HttpRequest& /*request*/) {
  const Tokenizer& tokenizer = service.tokenizer();
  JsonWriter json;
  json.begin_object();
  json.key("tokenizer_class").text("PreTrainedTokenizerFast");
  write_token_or_null(json, "bos_token", tokenizer.bos_text);
  write_token_or_null(json, "eos_token", tokenizer.eos_text);
  write_token_or_null(json, "pad_token", tokenizer.eos_text);
  json.key("add_bos_token").boolean(tokenizer.bos_for_prompts);
  json.key("add_eos_token").boolean(tokenizer.end_of_prompt_id >= 0);
  json.key("vocab_size").integer(tokenizer.vocab_size());
  json.key("model_max_length").integer(service.max_model_len());
  write_token_or_null(json, "chat_template", tokenizer.chat_template);
  json.end_object();
  HttpResponse response;
  response.body = std::move(json).take();
  return response;
}

}  // namespace droidspeak
