#include "server/openai/generation_fields.h"
#include "server/openai/limits.h"

namespace droidspeak::openai {

ApiResult<TokenizeRequest> parse_tokenize_request(std::string body) {
  ApiResult<JsonDocument> document = parse_object(body);
  if (!document) return document.error();
  body = std::string();
  std::optional<ApiError> error;
  Fields fields(document->root(), "", error);
  TokenizeRequest request;
  request.model = fields.string("model", kMaxModelNameBytes).value_or("");
  request.wants_token_strings = fields.boolean("return_token_strs").value_or(false);
  if (fields.find("messages") && fields.find("prompt"))
    fields.invalid("prompt", "not allowed beside 'messages'; expected one of them");
  if (fields.find("messages")) {
    request.input = read_chat_prompt(fields);
    reject_unsupported(fields, {"chat_template", "continue_final_message"});
  } else {
    request.input = fields.required_string("prompt", kAnyLength);
    request.adds_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  }
  if (error) return *error;
  return request;
}

ApiResult<DetokenizeRequest> parse_detokenize_request(std::string_view body) {
  ApiResult<JsonDocument> document = parse_object(body);
  if (!document) return document.error();
  std::optional<ApiError> error;
  Fields fields(document->root(), "", error);
  DetokenizeRequest request;
  request.model = fields.string("model", kMaxModelNameBytes).value_or("");
  if (!fields.find("tokens")) fields.missing("tokens");
  if (auto tokens = fields.array("tokens"))
    request.tokens = read_token_ids(fields, "tokens", *tokens);
  if (error) return *error;
  return request;
}

ApiResult<LoadAdapterRequest> parse_load_adapter_request(std::string_view body) {
  ApiResult<JsonDocument> document = parse_object(body);
  if (!document) return document.error();
  std::optional<ApiError> error;
  Fields fields(document->root(), "", error);
  LoadAdapterRequest request;
  request.name = fields.required_string("lora_name", kMaxAdapterNameBytes);
  request.path = fields.required_string("lora_path", kMaxAdapterPathBytes);
  if (fields.boolean("load_inplace").value_or(false)) {
    request.if_taken = LoadAdapterRequest::IfTaken::kReplace;
  }
  reject_any_value(fields, {"lora_int_id"});
  if (error) return *error;
  return request;
}

ApiResult<UnloadAdapterRequest> parse_unload_adapter_request(std::string_view body) {
  ApiResult<JsonDocument> document = parse_object(body);
  if (!document) return document.error();
  std::optional<ApiError> error;
  Fields fields(document->root(), "", error);
  UnloadAdapterRequest request;
  request.name = fields.required_string("lora_name", kMaxAdapterNameBytes);
  fields.integer("lora_int_id");  // vLLM has it beside the name, which decides there, too
  if (error) return *error;
  return request;
}

}  // namespace droidspeak::openai
